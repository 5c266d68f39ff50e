//! What is built inside by tools that elsewhere make a call which the sandbox refuses.

use lockgate_clients::{Need, Site};

#[test]
fn a_program_with_the_address_sanitizer_ends_as_it_does_elsewhere() {
    for site in Site::for_everyone(&[Need::Program("cc")]) {
        let script = r#"
            echo "int main(int n, char **a) { char c[4] = {0}; return n > 1 ? c[n + 3] : 0; }" >a.c
            exec "$PRODUCT" run -- sh -c 'cc -fsanitize=address a.c -o a && ./a; echo "code=$?"; ./a b c 2>&1'"#;
        let ended = site.shell().run(script);
        assert!(ended.stdout.starts_with("code=0\n"), "{ended}");
        // What it is there for it finds all the same.
        assert!(ended.stdout.contains("stack-buffer-overflow"), "{ended}");
    }
}

#[test]
fn a_package_is_built_with_files_of_roots() {
    for site in Site::for_everyone(&[Need::Program("fakeroot")]) {
        let script = r#"exec "$PRODUCT" run -- fakeroot sh -ec '
            mkdir -p d/usr; echo x >d/usr/f; chown -R root:root d; install -o root -g root d/usr/f d/usr/g
            tar -cf d.tar d; tar -tvf d.tar'"#;
        let ended = site.shell().run(script);
        assert!(ended.code == 0 && ended.stdout.matches("root/root").count() == 4, "{ended}");
    }
}

#[test]
fn go_builds_where_there_is_a_repository_and_where_there_is_none() {
    for site in Site::for_everyone(&[Need::Program("go"), Need::Program("git")]) {
        let script = r#"
            printf 'module m\n\ngo 1.18\n' >go.mod
            printf 'package main\n\nfunc main() { println("built") }\n' >m.go
            build() { "$PRODUCT" run -- sh -c 'go build -o m . && ./m' 2>&1; }
            build; mkdir below; cp go.mod m.go below; git init -q .; build; cd below; build"#;
        let ended = site.shell().run(script);
        assert!(ended.code == 0 && ended.stdout.matches("built\n").count() == 3, "{ended}");
    }
}
