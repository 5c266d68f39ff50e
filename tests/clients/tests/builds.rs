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
            install -g mail d/usr/f d/usr/m; install -o www-data -g adm d/usr/f d/usr/w
            tar -cf d.tar d; tar -tvf d.tar'"#;
        let ended = site.shell().run(script);
        assert!(ended.code == 0 && ended.stdout.matches("root/root").count() == 4, "{ended}");
        assert!(ended.stdout.contains("root/mail") && ended.stdout.contains("www-data/adm"), "{ended}");
    }
}

#[test]
fn processes_of_open_mpi_read_each_others_memory() {
    for site in Site::for_everyone(&[Need::Program("mpicc"), Need::Program("mpirun")]) {
        let script = r#"
            cat >m.c <<'END'
            #include <mpi.h>
            #include <stdio.h>
            static char octets[1 << 20];
            int main(int n, char **a) {
                int rank;
                MPI_Win window;
                MPI_Init(&n, &a);
                MPI_Comm_rank(MPI_COMM_WORLD, &rank);
                octets[99] = rank ? 0 : 'x';
                MPI_Win_create(octets, sizeof octets, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
                MPI_Win_fence(0, window);
                if (rank) MPI_Get(octets, sizeof octets, MPI_CHAR, 0, 0, sizeof octets, MPI_CHAR, window);
                MPI_Win_fence(0, window);
                MPI_Win_free(&window);
                MPI_Finalize();
                puts(octets[99] == 'x' ? "was read" : "is lost");
            }
END
            exec "$PRODUCT" run -- sh -c 'mpicc m.c -o m && mpirun --oversubscribe -n 2 ./m 2>&1 | head -n 99'"#;
        let ended = site.shell().run(script);
        assert!(
            ended.stdout.matches("was read").count() == 2 && !ended.stdout.contains("Read -1"),
            "{ended}"
        );
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
