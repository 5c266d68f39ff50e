//! What a file system lets a command do that others do not, and what it does not keep.

use std::path::Path;

use lockgate_clients::{Ended, Need, Site};
use lockgate_needs::missing;

/// Runs a script as root in a mount namespace of its own, in which `lockgate` is run by another user. What is mounted at `there` is
/// unmounted at the end, because its server would keep the namespace; where the script is killed, that server is killed with it.
fn with_a_server(needs: &[Need], script: &str) -> Option<Ended> {
    let site = Site::for_test(&[&[Need::Root, Need::Program("setpriv")][..], needs].concat())?;
    if !Path::new("/dev/fuse").exists() {
        missing("there is no /dev/fuse");
        return None;
    }
    let script = format!(
        r#"chmod 711 "$OUTSIDE/.."; cp "$PRODUCT" "$OUTSIDE/product"; mkdir there "$OUTSIDE/home"
        chown 65534:65534 "$OUTSIDE/home"; chmod 755 . "$OUTSIDE" "$OUTSIDE/product"
        cat >script <<'END'
        as_user() {{ HOME=$OUTSIDE/home setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }}
        lockgate() {{ as_user "$OUTSIDE/product" "$@"; echo "code=$?"; }}
        unset XDG_STATE_HOME; there=$PWD/there; trap 'cd /; umount -l "$there"' EXIT
        {script}
END
        exec unshare --mount-proc --pid --fork --kill-child sh -u script"#
    );
    Some(site.shell().run(&script))
}

#[test]
fn nothing_protected_is_written_by_its_short_name() {
    let script = r#"
        truncate -s 8M image; mkntfs -Fq image >/dev/null 2>&1; ntfs-3g -o permissions image there
        chmod 755 there; mkdir -p there/w/.git/hooks; touch there/w/.git/config; chown -R 65534:65534 there/w; cd there/w
        lockgate run -- sh -c 'setfattr -h -n system.ntfs_dos_name -v "GIT~1" .git; echo evil >>"GIT~1/config"'
        lockgate run --workspace-mode ro -- true; cat .git/config"#;
    let Some(ended) = with_a_server(&[Need::Program("ntfs-3g")], script) else { return };
    assert_eq!(ended.stdout, "code=125\ncode=0\n", "{ended}");
    assert!(
        ended.stderr.contains("short names") && ended.stderr.contains("--workspace-mode overlay"),
        "{ended}"
    );
}

#[test]
fn neither_keys_nor_images_are_kept_where_everybody_could_open_them() {
    let script = r#"
        truncate -s 8M image; mkntfs -Fq image >/dev/null 2>&1; ntfs-3g -o uid=65534,gid=65534 image there
        as_user mkdir -p "$OUTSIDE/home/w/etc"; cd "$OUTSIDE/home/w"
        export XDG_STATE_HOME=$there/state; echo supersecretvalue | lockgate creds set github --stdin
        lockgate run -- true; find "$there" -name vault.key -o -name github.json -o -name audit.pk8
        unset XDG_STATE_HOME; export XDG_DATA_HOME=$there; lockgate image import . --name t"#;
    let Some(ended) = with_a_server(&[Need::Program("ntfs-3g")], script) else { return };
    assert_eq!(ended.stdout, "code=125\ncode=125\ncode=125\n", "{ended}");
    for said in ["vault.key: its file system keeps no modes", "XDG_STATE_HOME", "XDG_DATA_HOME"] {
        assert!(ended.stderr.contains(said), "{said}: {ended}");
    }
}

#[test]
fn who_may_give_mergerfs_orders_cannot_show_it_for_writing() {
    let script = r#"
        mkdir a; chown 65534:65534 a; mergerfs -o allow_other a there; mkdir there/below; chown 65534:65534 there/below
        "$PRODUCT" run --mount "$there:/m:rw" -- true; echo "root=$?"
        lockgate run --workspace "$there/below" -- true; lockgate run --workspace "$there" -- true"#;
    let Some(ended) = with_a_server(&[Need::Program("mergerfs")], script) else { return };
    assert_eq!(ended.stdout, "root=125\ncode=0\ncode=0\n", "{ended}");
    assert!(ended.stderr.contains("there/.mergerfs`"), "{ended}");
}
