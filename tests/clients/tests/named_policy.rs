//! A policy that is named and lies in the workspace: the command can neither write to it nor exchange it, so the next run obeys what the
//! person wrote. S3.12, E16.

use lockgate_clients::Site;

const POLICY: &str = "[env.set]\nSAYS = \"mine\"\n";
/// Tries every way to a file of its own at the name, and prints how many of them worked.
const ATTEMPTS: &str = r#"
worked=0
try() { if eval "$1" 2>/dev/null; then worked=$((worked+1)); echo "worked: $1"; fi; }
try 'echo "[env.set]" > rules/of/mine.toml'
try 'rm -f rules/of/mine.toml'
try 'mv rules/of/mine.toml x'
try 'mv rules/of rules/was'
try 'mv rules was'
try 'rm -rf rules/of'
try 'mv top.toml x'
try 'echo > top.toml'
try 'ln -sf x top.toml'
mkdir -p rules/of && touch rules/of/beside beside && echo "beside=$?"
echo "worked=$worked"
"#;

#[test]
fn the_command_cannot_write_what_the_next_run_obeys() {
    for site in Site::for_everyone(&[]) {
        let attempts = site.file("attempts.sh", ATTEMPTS);
        for policy in ["top.toml", "rules/of/mine.toml"] {
            let begun = site.shell().with("POLICY", policy).run(&format!(
                "mkdir -p rules/of; for it in top.toml rules/of/mine.toml; do printf '%s' '{POLICY}' > $it; done
                 lockgate run --policy $POLICY --mount {}:/attempts.sh -- sh -c 'echo \"says=$SAYS\"; sh /attempts.sh'
                 cat $POLICY; rm -rf rules top.toml beside",
                attempts.display()
            ));
            assert_eq!(begun.said("says"), "mine", "{begun}");
            assert_eq!(begun.said("beside"), "0", "{begun}");
            let mine = if policy == "top.toml" { "top.toml" } else { "rules" };
            let worked =
                begun.stdout.lines().filter(|line| line.starts_with("worked: ") && line.contains(mine));
            assert_eq!(worked.count(), 0, "{begun}");
            assert!(begun.stdout.ends_with(POLICY), "{begun}");
        }
        let refused = site.shell().run(
            "echo > twice.toml; ln twice.toml second; lockgate run --policy twice.toml -- true; echo code=$?; rm twice.toml second",
        );
        assert_eq!(refused.said("code"), "125", "{refused}");
        assert!(refused.stderr.contains("a second name"), "{refused}");
        // What the command could exchange on the way to it leads to no policy.
        for (link, policy) in [("ln -s strict/it.toml link", "link"), ("ln -s strict link", "link/it.toml")] {
            let refused = site.shell().run(&format!(
                "mkdir strict; echo > strict/it.toml; {link}; lockgate run --policy {policy} -- true; echo code=$?; rm -r link strict",
            ));
            assert_eq!(refused.said("code"), "125", "{refused}");
            assert!(refused.stderr.contains("name the file itself: "), "{refused}");
        }
    }
}
