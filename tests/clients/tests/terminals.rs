//! `lockgate run` on a pseudo-terminal, as a person has one: its size and the changes of it reach the command, Ctrl-C interrupts what is
//! inside, a shell inside has job control, and a run has it in the shell outside, which hears that it is stopped when all of it is.

use std::ffi::OsStr;
use std::time::Duration;

use lockgate_clients::{Ended, Need, Site, at_terminal, product, run_to_end};

const NEEDS: &[Need] = &[Need::Program("python3"), Need::Program("bash"), Need::Program("stty")];

/// Does these steps at a terminal with 37 rows of 91 columns, in which a script runs inside.
fn person(site: &Site, shell: &[&str], steps: &[&str]) -> Ended {
    let product = product().expect("`Site` asked first");
    let run = ["run", "-t", "--"];
    at_terminal(site, [product.as_os_str()].into_iter().chain(run.iter().chain(shell).map(OsStr::new)), steps)
}

#[test]
fn the_size_of_the_window_and_its_changes_reach_the_command() {
    for site in Site::for_everyone(NEEDS) {
        // The command has it from its beginning, and is told of a change alone.
        let script = "stty size; trap 'stty size; exit 0' WINCH; echo set; while :; do sleep 0.1; done";
        let steps = ["wait 37 91", "wait set", "size 21 133", "wait 21 133"];
        let ended = person(&site, &["bash", "-c", script], &steps);
        assert!(ended.stdout.ends_with("\nended=0 \n"), "{ended}");
    }
}

#[test]
fn what_the_shell_led_elsewhere_is_not_shown_at_the_terminal() {
    for site in Site::for_everyone(NEEDS) {
        let product = product().expect("`Site` asked first");
        let line = "\"$0\" run -- sh -c 'test -t 0 && test -t 1 && ! test -t 2 && echo shown; echo apart >&2; ls /nowhere' 2> log
            echo \"log: $(cat log)\"";
        let words = [OsStr::new("/bin/sh"), OsStr::new("-c"), OsStr::new(line), product.as_os_str()];
        let ended = at_terminal(&site, words, &["wait shown", "wait log: ", "wait apart"]);
        assert!(ended.stdout.contains("cannot access '/nowhere'"), "{ended}");
        assert!(
            ended.stdout.ends_with("\nended=0 \n") && ended.stdout.matches("apart").count() == 1,
            "{ended}"
        );
        // What leads to one place stays in its order, which only one way keeps.
        let line = "\"$0\" run -t -- sh -c 'test -t 1 && test -t 2 && for it in 1 2 3 4; do echo o$it; echo e$it >&2; done' > log 2>&1
            echo \"log:\" $(cat log)";
        let words = [OsStr::new("/bin/sh"), OsStr::new("-c"), OsStr::new(line), product.as_os_str()];
        let ended = at_terminal(&site, words, &["wait log: "]);
        let shown = ended.stdout.replace('\r', "");
        assert!(shown.contains("o1 e1 o2 e2 o3 e3 o4 e4"), "{ended}");
    }
}

#[test]
fn ctrl_c_interrupts_what_is_inside_and_the_run_ends_so() {
    for site in Site::for_everyone(NEEDS) {
        let begun = ["wait begun", r"type \x03"];
        let ended = person(&site, &["sh", "-c", "echo begun; exec sleep 50"], &begun);
        assert!(ended.stdout.ends_with("\nended=130 \n") && ended.took < Duration::from_secs(20), "{ended}");
        // Who handles the signal goes on: it is the command's, and the product takes no part.
        let script = "trap 'echo heard; exit 7' INT; echo begun; while :; do sleep 0.1; done";
        let ended = person(&site, &["bash", "-c", script], &["wait begun", r"type \x03", "wait heard"]);
        assert!(ended.stdout.ends_with("\nended=7 \n"), "{ended}");
    }
}

/// The terminal shows what is typed too, so each awaited answer differs from its question.
const SHELL: [&str; 18] = [
    "wait ready$",
    r"type sed -u s/^/said:/\n",
    r"type one\n",
    "wait said:one",
    r"type \x1a",
    "wait Stopped",
    "wait ready$",
    r"type echo still-$((40 + 2))\n",
    "wait still-42",
    "wait ready$",
    r"type fg\n",
    r"type two\n",
    "wait said:two",
    r"type \x03",
    "wait ready$",
    r"type echo left-by-$?\n",
    "wait left-by-130",
    r"type exit 5\n",
];

#[test]
fn a_shell_inside_has_job_control() {
    for site in Site::for_everyone(NEEDS) {
        let ended = person(&site, &["env", "PS1=ready$ ", "bash", "--noprofile", "--norc", "-i"], &SHELL);
        assert!(ended.stdout.ends_with("\nended=5 \n"), "{ended}");
        assert!(!ended.stdout.contains("no job control"), "{ended}");
    }
}

/// Behind the pipe the command has no terminal of its own, and reads the person's.
const JOB: [&str; 24] = [
    "wait ready$",
    r"type $LOCKGATE run -- sed -u s/^/said:/ | cat\n",
    r"type one\n",
    "wait said:one",
    r"type \x1a",
    "wait Stopped",
    "wait ready$",
    r"type echo typed-$((40 + 1))\n",
    "wait typed-41",
    r"type echo typed-$((40 + 2))\n",
    "wait typed-42",
    r"type echo typed-$((40 + 3))\n",
    "wait typed-43",
    r"type bg\n",
    "wait ready$",
    r"type echo behind-$((40 + 4))\n",
    "wait behind-44",
    r"type echo behind-$((40 + 5))\n",
    "wait behind-45",
    r"type fg\n",
    r"type two\n",
    "wait said:two",
    r"type \x04",
    r"type exit 5\n",
];

#[test]
fn a_stopped_run_reads_nothing_of_what_is_typed_at_the_shell() {
    for site in Site::for_everyone(NEEDS) {
        let lockgate = format!("LOCKGATE={}", product().expect("`Site` asked first").display());
        let shell = ["/usr/bin/env", "PS1=ready$ ", &lockgate, "bash", "--noprofile", "--norc", "-i"];
        let ended = at_terminal(&site, shell.map(OsStr::new), &JOB);
        assert!(ended.stdout.ends_with("\nended=5 \n"), "{ended}");
        assert!(!ended.stdout.contains("said:echo") && !ended.stdout.contains("said:bg"), "{ended}");
    }
}

/// Runs the product with a command that maps memory all the time, in the kernel, where a signal waits; asks the job to stop, and prints the
/// state of the command when the job is seen to be stopped: `T`, if it is as well.
const STOPPER: &str = r#"
import os, signal, subprocess, sys
product, mapper = sys.argv[1:]
run = subprocess.Popen([product, "run", "--", "python3", "-c", mapper], process_group=0, stdin=subprocess.DEVNULL,
                       stdout=subprocess.PIPE, text=True)
run.stdout.readline()
os.killpg(run.pid, signal.SIGTSTP)
_, status = os.waitpid(run.pid, os.WUNTRACED)
states = []
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        words = open("/proc/%s/cmdline" % pid).read().split("\0")
        if words[0] == "python3" and mapper in words[:3]: states += [open("/proc/%s/stat" % pid).read().rsplit(")")[1].split()[0]]
    except OSError: pass
print("stopped" if os.WIFSTOPPED(status) else "over", *states)
os.killpg(run.pid, signal.SIGCONT)
run.terminate()
print("ended", os.waitstatus_to_exitcode(os.waitpid(run.pid, 0)[1]))
"#;

const MAPPER: &str = "import mmap\nprint('maps', flush=True)\nwhile True: mmap.mmap(-1, 1 << 28, mmap.MAP_PRIVATE | \
                      mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE).close()";

#[test]
fn a_run_is_stopped_when_what_is_inside_is() {
    for site in Site::for_everyone(NEEDS) {
        let mut command = site.world().command("python3");
        command.args(["-c", STOPPER]).arg(product().expect("`Site` asked first")).arg(MAPPER);
        command.current_dir(site.workspace()).env("XDG_STATE_HOME", site.state());
        let ended = run_to_end(&mut command, Duration::from_secs(60));
        assert_eq!(ended.stdout, "stopped T\nended 143\n", "{ended}");
    }
}

/// Runs the product, asks it to stop and at once to go on, eight times, and prints its states after each.
const RESUMER: &str = r#"
import os, signal, subprocess, sys, time
run = subprocess.Popen([sys.argv[1], "run", "--", "sh", "-c", "echo runs; exec sleep 50"], process_group=0,
                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
run.stdout.readline()
states = ""
for _ in range(8):
    os.kill(run.pid, signal.SIGTSTP)
    os.kill(run.pid, signal.SIGCONT)
    time.sleep(0.3)
    states += open("/proc/%d/stat" % run.pid).read().rsplit(")")[1].split()[0]
    os.kill(run.pid, signal.SIGCONT)
print(states)
run.terminate()
print("ended", os.waitstatus_to_exitcode(os.waitpid(run.pid, 0)[1]))
"#;

#[test]
fn a_run_that_is_continued_while_it_stops_goes_on() {
    for site in Site::for_everyone(NEEDS) {
        let mut command = site.world().command("python3");
        command.args(["-c", RESUMER]).arg(product().expect("`Site` asked first"));
        command.current_dir(site.workspace()).env("XDG_STATE_HOME", site.state());
        let ended = run_to_end(&mut command, Duration::from_secs(60));
        assert!(!ended.stdout.contains('T') && ended.stdout.ends_with("\nended 143\n"), "{ended}");
    }
}

/// A pipeline that is all of a session, as of `ssh -t HOST 'PIPELINE'`: no shell would continue it.
const ALONE: [&str; 7] =
    [r"type one\n", "wait said:one", r"type \x1a", r"type two\n", "wait said:two", r"type \x03", "sleep 0.2"];

#[test]
fn where_nobody_would_continue_it_a_run_is_not_stopped() {
    for site in Site::for_everyone(NEEDS) {
        let script =
            format!("{} run -- sed -u s/^/said:/ | cat", product().expect("`Site` asked first").display());
        let ended = at_terminal(&site, ["/bin/sh", "-c", &script].map(OsStr::new), &ALONE);
        assert!(!ended.stdout.contains("never:") && ended.stdout.contains("said:two"), "{ended}");
    }
}

/// The command has ended, and its last output waits for a reader that does not read.
const DRAIN: [&str; 11] = [
    "wait ready$",
    r"type $LOCKGATE run -- sh -c 'head -c 100000 /dev/zero; echo written >&2' | sleep 50\n",
    "wait written",
    "sleep 1",
    r"type \x1a",
    "wait Stopped",
    "wait ready$",
    r"type kill -9 %1; sleep 1\n",
    r"type echo killed-$((40 + 1))\n",
    "wait killed-41",
    r"type exit 5\n",
];

#[test]
fn a_run_whose_last_output_waits_is_stopped_as_well() {
    for site in Site::for_everyone(NEEDS) {
        let lockgate = format!("LOCKGATE={}", product().expect("`Site` asked first").display());
        let shell = ["/usr/bin/env", "PS1=ready$ ", &lockgate, "bash", "--noprofile", "--norc", "-i"];
        let ended = at_terminal(&site, shell.map(OsStr::new), &DRAIN);
        assert!(ended.stdout.ends_with("\nended=5 \n"), "{ended}");
    }
}

#[test]
fn the_end_of_input_reaches_a_terminal_behind_an_unfinished_line() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    for (input, shown) in [("yes", "yes"), ("yes\\n", "yes"), ("", "")] {
        let script = format!(
            "printf '{input}' | timeout 20 \"$PRODUCT\" run --terminal -- sh -c 'stty -echo; cat; echo over'"
        );
        let ended = site.shell().run(&script);
        assert!(
            ended.code == 0 && ended.stdout.starts_with(shown) && ended.stdout.contains("over"),
            "{ended}"
        );
    }
}
