//! Makes the images of the container tests, as archives in a folder of the target directory: a Debian with two databases and
//! everyday programs, and one that is busybox alone.
//!
//! Nothing of this machine may get into them: no mirror, proxy, name server, host name or key. Nothing outside that folder changes,
//! no mount stays, and no service starts. They need root, because chroot(2) does.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{Rights, program};
use crate::bounded::Bounded;

/// The folder, beneath the target directory.
const IMAGES: &str = "images";
/// The image that the tests at an engine need, from the target directory on.
pub(crate) const OF_ENGINES: &str = "images/debian.tar";
/// The folder in it for an image that is not complete: the system's own `/tmp` may be small, or refuse devices.
const WORKSHOP: &str = "workshop";
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// The time that all younger files get, so that the same packages make the same image.
const EPOCH: &str = "1700000000";

/// The packages that tests run inside.
const DEBIAN_PACKAGES: [&str; 9] = [
    "python3-minimal",
    "curl",
    "ca-certificates",
    "git",
    "procps",
    "postgresql",
    "postgresql-client",
    "redis-server",
    "redis-tools",
];
/// Files that no test reads, mostly PostgreSQL's compiler: without `llvmjit.so` it works without one, and does not complain.
const LEFT_OUT: [&str; 9] = [
    "/usr/share/doc/*",
    "/usr/share/man/*",
    "/usr/share/info/*",
    "/usr/share/locale/*",
    "/usr/share/i18n/*",
    "/usr/lib/postgresql/*/lib/llvmjit*",
    "/usr/lib/postgresql/*/lib/bitcode/*",
    "/usr/lib/*/libLLVM-*",
    "/usr/lib/*/libz3.so*",
];
/// Runs before PostgreSQL is installed: a cluster of its own would take 39 MB and differ each time.
const NO_CLUSTER: &str = r#"mkdir -p "$1/etc/postgresql-common/createcluster.d" &&
    echo "create_main_cluster = false" > "$1/etc/postgresql-common/createcluster.d/none.conf""#;
/// Runs last: mmdebstrap(1) leaves the first four, ssl-cert makes a key, and the rest are the old copies of lists.
const FORGET_MACHINE: &str = r#"cd "$1" && : > etc/hostname && : > etc/resolv.conf &&
    chmod 644 etc/hostname etc/resolv.conf &&
    rm -rf etc/apt/sources.list etc/apt/sources.list.d/* etc/apt/apt.conf.d/99mmdebstrap &&
    rm -f etc/ssl/private/ssl-cert-snakeoil.key etc/ssl/certs/ssl-cert-snakeoil.pem &&
    find etc/ssl/certs -lname ssl-cert-snakeoil.pem -delete &&
    rm -f var/cache/debconf/*-old var/lib/dpkg/*-old"#;

/// The apt options for reaching this machine's mirrors; the others would make apt fetch more than packages.
const WAYS_TO_MIRRORS: [&str; 4] =
    ["acquire::http", "acquire::check-", "acquire::retries", "acquire::forceipv"];

/// The program of the Debian package busybox-static, which needs no library.
const BUSYBOX: &str = "/bin/busybox";
const BUSYBOX_FOLDERS: [&str; 7] = ["bin", "dev", "etc", "proc", "root", "sys", "tmp"];
const BUSYBOX_LINKS: [&str; 14] =
    ["sh", "ls", "cat", "id", "env", "sleep", "true", "wget", "mkdir", "rm", "ln", "stat", "touch", "echo"];
const BUSYBOX_FILES: [(&str, &str); 2] = [
    ("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"),
    ("etc/group", "root:x:0:\nnobody:x:65534:\n"),
];

/// An image: its archive is `NAME.tar`, and `NAME.stamp` beside it has the recipe it was made by.
#[derive(Clone, Copy)]
enum Image<'a> {
    Debian { suite: &'a str },
    Busybox,
}

/// Makes the images that are missing or were made by another recipe.
pub(super) fn prepare(target: &Path, rights: Rights) -> Result<Vec<String>> {
    let folder = target.join(IMAGES);
    let os = fs::read_to_string("/etc/os-release").context("failed to read /etc/os-release")?;
    let images = [Image::Debian { suite: suite(&os) }, Image::Busybox];
    let mut absent = Vec::new();
    for image in images.into_iter().filter(|image| !image.is_current(&folder)) {
        match image.obstacle(rights) {
            Some(why) => absent.push(format!("missing: {}.tar (container images): {why}", image.name())),
            None => make(image, &folder)?,
        }
    }
    Ok(absent)
}

/// Returns the name of this system's release, as in os-release(5).
fn suite(os_release: &str) -> &str {
    let name = os_release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    name.unwrap_or_default().trim_matches(['"', '\''])
}

impl Image<'_> {
    fn name(&self) -> &'static str {
        match self {
            Self::Debian { .. } => "debian",
            Self::Busybox => "busybox",
        }
    }

    fn is_current(&self, folder: &Path) -> bool {
        let stamp = fs::read_to_string(folder.join(self.name()).with_extension("stamp"));
        folder.join(self.name()).with_extension("tar").is_file()
            && stamp.is_ok_and(|text| text == self.recipe().join("\n"))
    }

    /// Returns why this machine cannot make the image.
    fn obstacle(&self, rights: Rights) -> Option<&'static str> {
        match self {
            _ if rights == Rights::User => Some("only root can make it"),
            Self::Debian { suite: "" } => Some("this system's release has no name"),
            Self::Debian { .. } if program("mmdebstrap").is_none() => Some("there is no mmdebstrap"),
            Self::Busybox if !Path::new(BUSYBOX).is_file() => Some("there is no /bin/busybox"),
            Self::Debian { .. } | Self::Busybox => None,
        }
    }

    /// Returns all that decides the content, except the versions of packages: an image may be older than they are.
    fn recipe(&self) -> Vec<String> {
        match self {
            Self::Debian { suite } => {
                let rest = [(*suite).to_owned(), EPOCH.to_owned()];
                debian_options().into_iter().chain(rest).collect()
            }
            Self::Busybox => {
                let files = BUSYBOX_FILES.map(|(path, text)| format!("{path}: {text}"));
                let names = BUSYBOX_FOLDERS.into_iter().chain(BUSYBOX_LINKS).map(str::to_owned);
                names.chain(files).chain([EPOCH.to_owned()]).collect()
            }
        }
    }
}

fn make(image: Image, folder: &Path) -> Result<()> {
    let workshop = folder.join(WORKSHOP);
    clear(&workshop)?;
    fs::create_dir_all(&workshop).context("failed to make a folder for the images")?;
    let unfinished = workshop.join("image.tar");
    match image {
        Image::Debian { suite } => make_debian(suite, &workshop, &unfinished)?,
        Image::Busybox => make_busybox(&workshop, &unfinished)?,
    }
    let archive = folder.join(image.name()).with_extension("tar");
    fs::rename(&unfinished, &archive).context("failed to move the image to its place")?;
    clear(&workshop)?;
    // Last, so that an image of an interrupted set-up is made anew.
    fs::write(archive.with_extension("stamp"), image.recipe().join("\n"))
        .context("failed to write the recipe")
}

fn clear(workshop: &Path) -> Result<()> {
    if workshop.exists() {
        fs::remove_dir_all(workshop).context("failed to remove what was left of an image")?;
    }
    Ok(())
}

fn make_debian(suite: &str, workshop: &Path, archive: &Path) -> Result<()> {
    // A container image may have no lists of packages.
    Bounded::new("apt-get", &["update", "--quiet"], LIMIT).run()?;
    let asked = ["indextargets", "--format", "$(RELEASE) $(SOURCESENTRY)", "Created-By: Packages"];
    let sources = sources(&Bounded::new("apt-get", &asked, LIMIT).stdout()?, suite);
    ensure!(!sources.is_empty(), "apt-get knows no packages of {suite}, this system's own release");

    let configuration = workshop.join("apt.conf");
    let ways = ways_to_mirrors(&Bounded::new("apt-config", &["dump"], LIMIT).stdout()?);
    fs::write(&configuration, ways).context("failed to write the options of apt")?;
    let options = debian_options();
    // In a mount namespace of its own: a killed attempt must not leave a mount of `/sys` beneath a folder that the next attempt
    // empties.
    let mut args = vec!["--mount", "mmdebstrap"];
    args.extend(options.iter().map(String::as_str));
    let configuration = format!("--aptopt={}", shown(&configuration)?);
    args.extend([configuration.as_str(), suite, shown(archive)?]);
    args.extend(sources.iter().map(String::as_str));
    Bounded::new("unshare", &args, LIMIT)
        .env("SOURCE_DATE_EPOCH", EPOCH)
        .env("TMPDIR", workshop)
        .run()
        .context("failed to make the Debian image")?;
    // `--skip=output/dev` also leaves out the folder, on which a container mounts its own devices.
    let rest = workshop.join("rest");
    fs::create_dir(&rest)
        .and_then(|()| make_folder(&rest.join("dev"), 0o755))
        .context("failed to make an empty folder for devices")?;
    tar("--append", archive, &rest, "./dev")
}

fn debian_options() -> Vec<String> {
    let mut options = vec![
        format!("--include={}", DEBIAN_PACKAGES.join(",")),
        format!("--essential-hook={NO_CLUSTER}"),
        format!("--customize-hook={FORGET_MACHINE}"),
        // Without root nobody can unpack devices; a container gets its own.
        "--skip=output/dev".to_owned(),
    ];
    options.extend(["--mode=root", "--variant=minbase", "--format=tar"].map(str::to_owned));
    options.extend(LEFT_OUT.map(|pattern| format!("--dpkgopt=path-exclude={pattern}")));
    options
}

/// Returns the source files that list this release. apt is asked, because they come in two formats.
fn sources(targets: &str, suite: &str) -> Vec<String> {
    let of_release = |release: &str| {
        release.strip_prefix(suite).is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '/']))
    };
    let entries = targets.lines().filter_map(|line| line.split_once(' '));
    let mut files: Vec<String> = entries
        .filter(|(release, _)| of_release(release))
        .filter_map(|(_, entry)| Some(entry.rsplit_once(':')?.0.to_owned()))
        .collect();
    files.sort();
    files.dedup();
    files
}

fn ways_to_mirrors(dump: &str) -> String {
    let is_one = |line: &&str| {
        let line = line.to_ascii_lowercase();
        WAYS_TO_MIRRORS.iter().any(|prefix| line.starts_with(prefix))
    };
    dump.lines().filter(is_one).map(|line| format!("{line}\n")).collect()
}

fn make_busybox(workshop: &Path, archive: &Path) -> Result<()> {
    let root = workshop.join("root");
    fill_busybox(&root, Path::new(BUSYBOX)).context("failed to fill the busybox image")?;
    // A busybox that needs libraries would not start here.
    let applets = Bounded::new("chroot", &[shown(&root)?, BUSYBOX, "--list"], LIMIT).stdout()?;
    for link in BUSYBOX_LINKS {
        ensure!(applets.lines().any(|applet| applet == link), "{BUSYBOX} has no `{link}`");
    }
    tar("--create", archive, &root, ".")
}

fn fill_busybox(root: &Path, busybox: &Path) -> io::Result<()> {
    make_folder(root, 0o755)?;
    for name in BUSYBOX_FOLDERS {
        // Everyone may write there, but remove only their own files: unlink(2).
        make_folder(&root.join(name), if name == "tmp" { 0o1777 } else { 0o755 })?;
    }
    for (path, text) in BUSYBOX_FILES {
        fs::write(root.join(path), text)?;
        set_mode(&root.join(path), 0o644)?;
    }
    fs::copy(busybox, root.join("bin/busybox"))?;
    set_mode(&root.join("bin/busybox"), 0o755)?;
    BUSYBOX_LINKS.iter().try_for_each(|link| symlink("busybox", root.join("bin").join(link)))
}

fn make_folder(path: &Path, mode: u32) -> io::Result<()> {
    fs::create_dir(path)?;
    set_mode(path, mode)
}

/// Sets the mode explicitly, because root's umask(2) may keep others out.
fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

fn tar(verb: &str, archive: &Path, folder: &Path, what: &str) -> Result<()> {
    let time = format!("--mtime=@{EPOCH}");
    let same_each_time = ["--sort=name", &time, "--owner=0", "--group=0", "--numeric-owner"];
    let files = ["--file", shown(archive)?, "--directory", shown(folder)?, what];
    Bounded::new("tar", &[&[verb], &same_each_time[..], &files[..]].concat(), LIMIT).run()
}

fn shown(path: &Path) -> Result<&str> {
    let text = path.to_str().context("the target directory's path is no UTF-8")?;
    ensure!(!text.starts_with('-'), "the target directory's path begins with `-`");
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files_of(folder: &Path) -> Vec<String> {
        let names = fs::read_dir(folder).unwrap().map(|it| it.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn an_image_counts_only_with_the_recipe_it_is_made_by_today() {
        let folder = tempfile::tempdir().unwrap();
        let image = Image::Debian { suite: "bookworm" };
        let (archive, stamp) = (folder.path().join("debian.tar"), folder.path().join("debian.stamp"));
        fs::write(&stamp, image.recipe().join("\n")).unwrap();
        assert!(!image.is_current(folder.path()));
        fs::write(&archive, "").unwrap();
        assert!(image.is_current(folder.path()));
        assert!(!Image::Debian { suite: "trixie" }.is_current(folder.path()));
        fs::write(&stamp, "--include=nothing").unwrap();
        assert!(!image.is_current(folder.path()));
    }

    #[test]
    fn without_root_nothing_is_made_and_each_image_is_listed() {
        let target = tempfile::tempdir().unwrap();
        let absent = prepare(target.path(), Rights::User).unwrap();
        assert_eq!(absent.len(), 2, "{absent:?}");
        assert_eq!(absent[1], "missing: busybox.tar (container images): only root can make it");
        assert!(files_of(target.path()).is_empty());
    }

    #[test]
    fn the_release_is_the_one_of_this_system_and_its_sources_alone_are_used() {
        assert_eq!(suite("ID=debian\nVERSION_CODENAME=bookworm\n"), "bookworm");
        assert_eq!(suite("VERSION_CODENAME=\"noble\"\n"), "noble");
        assert_eq!(suite("ID=arch\n"), "");
        let targets = "bookworm /etc/apt/a b.sources:1\nbookworm-security /etc/apt/a b.sources:12\n\
                       bookworms /etc/apt/c.list:1\nnodistro /etc/apt/d.sources:1\n";
        assert_eq!(sources(targets, "bookworm"), ["/etc/apt/a b.sources"]);
        assert!(sources(targets, "trixie").is_empty());
    }

    #[test]
    fn only_what_leads_to_a_mirror_is_taken_from_apt() {
        let dump = "APT::Sandbox::User \"_apt\";\nAcquire::http::Proxy \"http://proxy.test:1\";\n\
                    Acquire::IndexTargets::deb::Contents-deb \"\";\nAcquire::Check-Date \"false\";\n";
        let ways = "Acquire::http::Proxy \"http://proxy.test:1\";\nAcquire::Check-Date \"false\";\n";
        assert_eq!(ways_to_mirrors(dump), ways);
    }

    #[test]
    fn the_root_of_busybox_is_filled_whatever_program_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        fill_busybox(&root, Path::new("/bin/true")).unwrap();
        assert_eq!(files_of(&root), BUSYBOX_FOLDERS);
        assert_eq!(fs::metadata(root.join("tmp")).unwrap().permissions().mode() & 0o7777, 0o1777);
        assert_eq!(fs::read_link(root.join("bin/sh")).unwrap(), Path::new("busybox"));
        assert_eq!(files_of(&root.join("bin")).len(), BUSYBOX_LINKS.len() + 1);
    }
}
