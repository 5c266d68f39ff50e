//! Limits with control groups of version 2 alone, on a distribution's kernel: what `tests/conformance` shows with version 1 (memory_limit,
//! process_limit, processor_limit, leftovers, cgroups) for root, for an unprivileged user with a delegated group, and that without one
//! nothing is promised. S1.30, S1.31, S2.9, S3.17; L01, L06, L09.

use lockgate_guest::{Answer, Caller, Parts, Scenario, boot};

/// What holds for a user who may make a control group.
const ENFORCED: &[Scenario] = &[
    Scenario {
        name: "a run with version 2",
        script: "lockgate run -- true && lockgate doctor --json && lockgate runs show latest --json",
        check: |answer| {
            assert!(answer.code == 0, "{answer}");
            let [doctor, record] = &answer.objects()[..] else { panic!("two objects: {answer}") };
            let checks = doctor["checks"].as_array().unwrap();
            let limits = checks.iter().find(|check| check["check"] == "limits").unwrap();
            assert!(limits["verdict"] == "works" && limits["detail"] == "control groups v2", "{answer}");
            assert!(record["outcome"]["exit_code"] == 0, "{answer}");
            assert!(record["outcome"]["memory_peak"].as_u64().is_some_and(|peak| peak > 0), "{answer}");
        },
    },
    Scenario {
        name: "memory",
        // `dd` holds a block in memory.
        script: "eat='dd if=/dev/zero of=/dev/null count=1'
            $eat bs=100M && lockgate run --memory 64MiB -- $eat bs=16M && echo control=worked
            lockgate run --memory 64MiB -- $eat bs=100M",
        check: |answer| {
            assert!(answer.said("control") == "worked" && answer.code == 137, "{answer}");
            let named = answer.stderr.lines().any(|line| line.contains("memory") && line.contains("64MiB"));
            assert!(named, "the limit is not named: {answer}");
        },
    },
    Scenario {
        name: "memory of a private directory and a process together",
        script: "in_all() { echo \"dd if=/dev/zero of=/tmp/file bs=1M count=24 && dd if=/dev/zero of=/dev/null bs=$1 count=1\"; }
            lockgate run --memory 64MiB -- sh -c \"$(in_all 24M)\" && echo control=worked
            lockgate run --memory 64MiB -- sh -c \"$(in_all 56M)\"",
        check: |answer| assert!(answer.said("control") == "worked" && answer.code == 137, "{answer}"),
    },
    Scenario {
        name: "processes",
        script: "lockgate run --pids 16 -- ./probe forks 64; lockgate run --pids 16 -- ./probe fork-bomb 10",
        check: |answer| {
            let [forks, bomb] = &answer.objects()[..] else { panic!("two reports: {answer}") };
            assert!(forks["outcome"] == "refused" && forks["errno"] == "EAGAIN", "{answer}");
            assert!(forks["detail"]["children"].as_u64().is_some_and(|n| (8..16).contains(&n)), "{answer}");
            assert!(bomb["probe"] == "fork-bomb" && answer.code == 0, "it did not end: {answer}");
            let named = answer.stderr.matches("it reached its limit of processes").count();
            assert!(named == 2, "the limit is not named: {answer}");
        },
    },
    Scenario {
        name: "processors",
        script: "./probe spin 1 1; lockgate run --cpus 0.25 -- ./probe spin 1 1",
        check: |answer| {
            let share = |report: &serde_json::Value| {
                let number = |key: &str| report["detail"][key].as_f64().unwrap();
                number("processor") / number("wall")
            };
            let [control, inside] = &answer.objects()[..] else { panic!("two reports: {answer}") };
            assert!(share(control) > 0.8, "the control had not a processor: {answer}");
            assert!(share(inside) < 0.35, "{:.2} processors of 0.25: {answer}", share(inside));
        },
    },
    Scenario {
        name: "the group of a run, and nothing of it after its end",
        script: "hold --memory 64MiB --cpus 0.25 --pids 9; cd $(groups)/run || exit 1
            for file in memory.max memory.swap.max cpu.max pids.max; do echo $file=$(cat $file 2>&1); done
            echo processes=$(cat cgroup.procs | wc -l)
            kill $run; wait $run; echo left=$(groups)",
        check: |answer| {
            assert!(answer.said("memory.max") == (64 << 20).to_string(), "{answer}");
            let swap = answer.said("memory.swap.max");
            assert!(swap == "0" || swap.contains("No such file"), "{answer}");
            assert!(answer.said("cpu.max") == "25000 100000", "{answer}");
            assert!(answer.said("pids.max") == "10", "init is one more: {answer}");
            // Init and the command: the sidecar is not counted.
            assert!(answer.said("processes") == "2", "{answer}");
            assert!(answer.said("left").is_empty(), "{answer}");
        },
    },
    Scenario {
        name: "controllers that are taken from the group around a run stay",
        // As systemd does once the last of its own units that needs one has ended.
        script: "hold --cpus 0.25; run_group=$(groups)
            echo -cpu > $(dirname $run_group)/cgroup.subtree_control && echo taken
            echo cpu.max=$(cat $run_group/run/cpu.max); kill $run; wait $run",
        check: |answer| {
            assert!(answer.said("cpu.max") == "25000 100000", "{answer}");
            assert!(!answer.stdout.contains("taken"), "{answer}");
        },
    },
    Scenario {
        name: "what is alone in a unit makes its groups there",
        // Twice, as a unit may with two programs, one after the other: the second is put into the unit itself.
        script: "unit 50M; ./probe attribute $unit user.delegate=1 > /dev/null
            for attempt in first second; do
                (echo 0 > $unit/cgroup.procs && exec lockgate run -- dd if=/dev/zero of=/dev/null bs=100M count=1)
                echo $attempt=$?; echo left=$(groups)
            done
            dismantle; echo unit=$?",
        check: |answer| {
            assert!(answer.said("first") == "137" && answer.said("second") == "137", "{answer}");
            assert!(answer.said("left").is_empty(), "{answer}");
            let told = "killed: this machine, or the unit in which the run was started, was out of memory";
            assert!(answer.stderr.contains(told) && !answer.stderr.contains("limited to"), "{answer}");
            assert!(answer.said("unit") == "0", "{answer}");
        },
    },
    Scenario {
        name: "a unit that was not delegated is left as it is",
        script: "unit 50M; (echo 0 > $unit/cgroup.procs; exec lockgate run -- sh -c 'sleep 0.1; exit 9'); echo code=$?
            echo handed=$(cat $unit/cgroup.subtree_control); dismantle; echo unit=$?",
        check: |answer| {
            assert!(answer.said("code") == "9" && answer.said("handed").is_empty(), "{answer}");
            assert!(answer.said("unit") == "0" && answer.stderr.contains("limited to 50MiB"), "{answer}");
        },
    },
    Scenario {
        name: "beside others in a unit a run has no more than the unit",
        script: "unit 50M; (echo 0 > $unit/cgroup.procs
            lockgate run -- dd if=/dev/zero of=/dev/null bs=100M count=1; echo code=$?; lockgate run --memory 40MiB -- true; :)
            dismantle; echo unit=$?",
        check: |answer| {
            assert!(answer.said("code") == "137" && answer.said("unit") == "0", "{answer}");
            assert!(answer.stderr.matches("limited to 50MiB of memory").count() == 1, "{answer}");
            assert!(answer.stderr.contains("of 50MiB)"), "{answer}");
        },
    },
    Scenario {
        name: "nothing is left after kill -9 and one more start",
        script: "hold; kill -9 $run; wait $run; echo before=$(groups)
            lockgate run -- true; echo code=$?; echo left=$(groups)",
        check: |answer| {
            assert!(answer.said("before").contains("lockgate-"), "the control: {answer}");
            assert!(answer.said("code") == "0" && answer.said("left").is_empty(), "{answer}");
        },
    },
    Scenario {
        name: "limits are out of the command's reach",
        // The report of writable files is long.
        script: "outcome() { tail -c 60 | grep -o '\"outcome\":\"[a-z]*\"' | tr -d '\"'; }
            echo control $(probe cgroup-writable | outcome)
            echo inside $(lockgate run -- ./probe cgroup-writable | outcome)
            lockgate run -- sh -c 'echo group=$(cat /proc/self/cgroup); echo max > /sys/fs/cgroup/memory.max && echo written
                mkdir -p /tmp/groups && mount -t cgroup2 none /tmp/groups && echo mounted'",
        check: |answer| {
            for line in ["control outcome:done", "inside outcome:refused"] {
                assert!(answer.stdout.lines().any(|it| it == line), "{line}: {answer}");
            }
            assert!(answer.said("group") == "0::/", "the run sees where its control group is: {answer}");
            assert!(!answer.stdout.contains("written") && !answer.stdout.contains("mounted"), "{answer}");
        },
    },
    Scenario {
        name: "the limits of the backend `process`",
        script: "lockgate run --backend process --pids 16 -- ./probe forks 64
            lockgate run --backend process --memory 64MiB -- dd if=/dev/zero of=/dev/null bs=100M count=1",
        check: |answer| {
            let [forks] = &answer.objects()[..] else { panic!("one report: {answer}") };
            assert!(forks["outcome"] == "refused" && forks["errno"] == "EAGAIN", "{answer}");
            assert!(answer.code == 137, "{answer}");
        },
    },
    Scenario {
        name: "an image, where files in memory have no attributes and what is written goes to disk",
        script: "mkdir -p image/bin image/srv/below/one && cp /bin/busybox image/bin && chmod -R 777 image
            for applet in sh rm mkdir ls; do ln -s busybox image/bin/$applet; done
            lockgate image import image --name small && rm -r image
            lockgate run --image small -- /bin/sh -c 'cd /srv && echo w > written && rm -r below && mkdir below && echo inside=$(ls below).'
            echo code=$?; echo left=$(ls ~/.local/state/lockgate/written)",
        check: |answer| {
            assert!(answer.said("code") == "0" && answer.said("inside") == ".", "{answer}");
            assert!(answer.said("left").is_empty() && answer.stderr.contains("Linux 6.6"), "{answer}");
        },
    },
    Scenario { name: "nothing is left of all of them", script: "groups", check: nothing_is_left },
];

/// A delegation in another form counts as one.
const MADE: &[Scenario] = &[Scenario {
    name: "a run in a group that was delegated otherwise",
    script: "lockgate run --memory 64MiB -- dd if=/dev/zero of=/dev/null bs=100M count=1; echo code=$?; groups",
    check: |answer| {
        assert!(answer.said("code") == "137", "{answer}");
        assert!(!answer.stdout.contains("lockgate-"), "{answer}");
    },
}];

/// What holds for a user who may not.
const REFUSED: &[Scenario] = &[
    Scenario {
        name: "a limit that cannot be held is refused",
        script: "lockgate run --memory 64MiB -- echo ran",
        check: |answer| {
            assert!(answer.code == 125 && answer.stdout.is_empty(), "{answer}");
            assert!(answer.stderr.contains("cannot be limited"), "{answer}");
            let remedies = ["Delegate", "--limits best-effort"];
            assert!(remedies.iter().all(|it| answer.stderr.contains(it)), "no remedy: {answer}");
        },
    },
    Scenario {
        name: "with --limits best-effort it runs, and what is weaker is said",
        script: "lockgate run --memory 64MiB --pids 16 --limits best-effort -- ./probe forks 64",
        check: |answer| {
            assert!(answer.code == 0, "{answer}");
            assert!(answer.stderr.contains("memory and processors are not limited"), "{answer}");
            // The kernel counts processes by user namespace as well.
            assert!(answer.objects()[0]["errno"] == "EAGAIN", "{answer}");
        },
    },
    Scenario {
        name: "a run that asks for no limit runs, and says so too",
        script: "lockgate run -- true; echo code=$?; lockgate doctor --json; groups",
        check: |answer| {
            assert!(answer.said("code") == "0", "{answer}");
            assert!(answer.stderr.contains("memory and processors are not limited"), "{answer}");
            let limits = |doctor: &serde_json::Value| {
                let checks = doctor["checks"].as_array().unwrap();
                checks.iter().find(|check| check["check"] == "limits").unwrap()["verdict"].clone()
            };
            assert!(limits(&answer.objects()[0]) == "weaker", "{answer}");
            assert!(!answer.stdout.contains("lockgate-"), "{answer}");
        },
    },
];

/// What a delegation lacks is named.
const LACKS_PROCESSOR: &[Scenario] = &[Scenario {
    name: "the controller that is missing is named",
    script: "lockgate run --memory 64MiB -- true",
    check: |answer| assert!(answer.stderr.contains("without the controller cpu\n"), "{answer}"),
}];
const HOLDS_PROCESSES: &[Scenario] = &[Scenario {
    name: "that the group holds processes is said",
    script: "lockgate run --memory 64MiB -- true",
    check: |answer| assert!(answer.stderr.contains("holds processes itself"), "{answer}"),
}];

fn nothing_is_left(answer: &Answer) {
    assert!(answer.code == 0 && answer.stdout.is_empty(), "{answer}");
}

#[test]
fn version_2_keeps_the_promises_of_version_1() {
    let Some(parts) = Parts::find() else { return };
    let callers = [
        (Caller::Root, ENFORCED),
        (Caller::Delegated, ENFORCED),
        (Caller::Subgroup, MADE),
        (Caller::Within, REFUSED),
        (Caller::Within, HOLDS_PROCESSES),
        (Caller::NoProcessor, REFUSED),
        (Caller::NoProcessor, LACKS_PROCESSOR),
        (Caller::HalfGiven, REFUSED),
        (Caller::Undelegated, REFUSED),
    ];
    // One machine for all of them: booting takes longer than running them.
    let scenarios: Vec<(Caller, Scenario)> = callers
        .into_iter()
        .flat_map(|(caller, scenarios)| scenarios.iter().map(move |scenario| (caller, *scenario)))
        .collect();
    let answers = boot(&parts, &scenarios);
    let mut broken = 0;
    for ((caller, scenario), answer) in scenarios.iter().zip(&answers) {
        let held = std::panic::catch_unwind(|| (scenario.check)(answer)).is_ok();
        println!("{} {caller:?}: {}", if held { "ok    " } else { "BROKEN" }, scenario.name);
        broken += usize::from(!held);
    }
    assert!(broken == 0, "{broken} of {} scenarios, see above", scenarios.len());
}
