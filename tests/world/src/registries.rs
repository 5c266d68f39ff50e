//! Package indexes for Python, Node and Rust, each with one tiny package, in the form their real clients request. The public names of the
//! three services are served as well, so that a client works without another index configured.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, SHA512, digest};
use data_encoding::{BASE64, HEXLOWER};
use serde_json::json;

use crate::archive::{tar_gz, zip};
use crate::public::PUBLIC;
use crate::response::Response;

/// The package's name in all three; Python's file names spell it with underscores.
const NAME: &str = "hello-world-pkg";
const WHEEL: &str = "hello_world_pkg-1.0-py3-none-any.whl";

/// The packages, made once.
pub(crate) struct Registries {
    wheel: Vec<u8>,
    tarball: Vec<u8>,
    source: Vec<u8>,
}

impl Registries {
    pub(crate) fn new() -> Self {
        Self { wheel: wheel(), tarball: tarball(), source: source() }
    }

    /// Returns the answer of an index, or nothing if `host` is none.
    pub(crate) fn answer(&self, host: &str, path: &str) -> Option<Response> {
        match host {
            "pypi.example.org" => Some(self.python(path, "pypi.example.org")),
            "npm.example.org" => Some(self.node(path, host)),
            "crates.example.org" => Some(match path.strip_prefix("/index") {
                Some(path) => self.rust_index(path, "https://crates.example.org/dl"),
                None => self.rust_download(path),
            }),
            public if public == PUBLIC.python || public == PUBLIC.python_files => {
                Some(self.python(path, &PUBLIC.python_files))
            }
            public if public == PUBLIC.node => Some(self.node(path, host)),
            public if public == PUBLIC.rust_index => {
                Some(self.rust_index(path, &format!("https://{}/dl", PUBLIC.rust_files)))
            }
            public if public == PUBLIC.rust_files => Some(self.rust_download(path)),
            _ => None,
        }
    }

    /// Answers by the simple repository interface (PEP 503).
    fn python(&self, path: &str, files: &str) -> Response {
        let page = |link: String| {
            Response::of(200, "text/html", format!("<!DOCTYPE html><html><body>{link}</body></html>"))
        };
        match path.trim_end_matches('/') {
            "/simple" => page(format!("<a href=\"/simple/{NAME}/\">{NAME}</a>")),
            "/simple/hello-world-pkg" => {
                let sum = HEXLOWER.encode(digest(&SHA256, &self.wheel).as_ref());
                page(format!("<a href=\"https://{files}/packages/{WHEEL}#sha256={sum}\">{WHEEL}</a>"))
            }
            path if path == format!("/packages/{WHEEL}") => {
                Response::of(200, "application/zip", self.wheel.clone())
            }
            _ => Response::not_found(),
        }
    }

    fn node(&self, path: &str, host: &str) -> Response {
        let file = format!("/{NAME}/-/{NAME}-1.0.0.tgz");
        if path == file {
            return Response::of(200, "application/octet-stream", self.tarball.clone());
        }
        if path.starts_with("/-/npm/v1/security/") {
            return Response::json(&json!({}));
        }
        if path != format!("/{NAME}") {
            return Response::of(404, "application/json", "{\"error\":\"Not found\"}");
        }
        let integrity = format!("sha512-{}", BASE64.encode(digest(&SHA512, &self.tarball).as_ref()));
        let shasum = HEXLOWER.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &self.tarball).as_ref());
        let dist =
            json!({ "tarball": format!("https://{host}{file}"), "integrity": integrity, "shasum": shasum });
        Response::json(&json!({
            "_id": NAME,
            "name": NAME,
            "dist-tags": { "latest": "1.0.0" },
            "versions": { "1.0.0": { "name": NAME, "version": "1.0.0", "main": "index.js", "dist": dist } },
        }))
    }

    /// Answers as a sparse registry index (the Cargo book, "Registry Index").
    fn rust_index(&self, path: &str, downloads: &str) -> Response {
        if path == "/config.json" {
            return Response::json(&json!({ "dl": downloads }));
        }
        if path != format!("/{}/{}/{NAME}", &NAME[..2], &NAME[2..4]) {
            return Response::not_found();
        }
        Response::json(&json!({
            "name": NAME,
            "vers": "1.0.0",
            "deps": [],
            "cksum": HEXLOWER.encode(digest(&SHA256, &self.source).as_ref()),
            "features": {},
            "yanked": false,
        }))
    }

    fn rust_download(&self, path: &str) -> Response {
        if path == format!("/dl/{NAME}/1.0.0/download") {
            return Response::of(200, "application/gzip", self.source.clone());
        }
        Response::not_found()
    }
}

fn wheel() -> Vec<u8> {
    let module = b"def hello():\n    return \"hello from the world\"\n";
    let metadata = format!("Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\nSummary: A test package\n");
    let form = "Wheel-Version: 1.0\nGenerator: world\nRoot-Is-Purelib: true\nTag: py3-none-any\n";
    let folder = "hello_world_pkg-1.0.dist-info";
    let [metadata_path, form_path, record_path] =
        ["METADATA", "WHEEL", "RECORD"].map(|name| format!("{folder}/{name}"));
    let record = format!("hello_world_pkg.py,,\n{metadata_path},,\n{form_path},,\n{record_path},,\n");
    zip(&[
        ("hello_world_pkg.py", module),
        (&metadata_path, metadata.as_bytes()),
        (&form_path, form.as_bytes()),
        (&record_path, record.as_bytes()),
    ])
}

fn tarball() -> Vec<u8> {
    let package =
        json!({ "name": NAME, "version": "1.0.0", "main": "index.js", "license": "Apache-2.0" }).to_string();
    tar_gz(&[
        ("package/package.json", package.as_bytes()),
        ("package/index.js", b"module.exports = () => \"hello from the world\";\n"),
    ])
}

fn source() -> Vec<u8> {
    let root = format!("{NAME}-1.0.0");
    let manifest = format!(
        "[package]\nname = \"{NAME}\"\nversion = \"1.0.0\"\nedition = \"2021\"\n\n[lib]\npath = \"src/lib.rs\"\n"
    );
    let code = b"pub fn hello() -> &'static str {\n    \"hello from the world\"\n}\n";
    tar_gz(&[(&format!("{root}/Cargo.toml"), manifest.as_bytes()), (&format!("{root}/src/lib.rs"), code)])
}
