//! The result of one attempt: an outcome, the errno if there was one, and what was seen.
//! It only describes; the conformance tests judge.

use std::io;

use serde_json::{Value, json};

/// The four ways an attempt can end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It succeeded, or (for a bare system call) the kernel's own code was reached.
    Done,
    /// It was refused.
    Refused,
    /// The target is not there.
    Absent,
    /// It ended in some other way; the detail says how.
    Error,
}

impl Outcome {
    /// The word used in the JSON.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Refused => "refused",
            Self::Absent => "absent",
            Self::Error => "error",
        }
    }

    /// Sorts an errno into refused, absent or other error.
    pub(crate) fn of_errno(errno: i32) -> Self {
        match errno {
            libc::EPERM
            | libc::EACCES
            | libc::EROFS
            | libc::ECONNREFUSED
            | libc::ECONNRESET
            | libc::EPIPE
            | libc::ENETUNREACH
            | libc::EHOSTUNREACH
            | libc::ENOSPC
            | libc::EDQUOT
            | libc::EMFILE
            | libc::ENFILE => Self::Refused,
            libc::ENOENT
            | libc::ENOTDIR
            | libc::ENOSYS
            | libc::ESRCH
            | libc::ENODEV
            | libc::ENXIO
            | libc::EAFNOSUPPORT
            | libc::EPROTONOSUPPORT
            | libc::ESOCKTNOSUPPORT => Self::Absent,
            _ => Self::Error,
        }
    }
}

/// One attempt's result, without its name.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) outcome: Outcome,
    pub(crate) errno: Option<i32>,
    pub(crate) detail: Value,
}

impl Report {
    /// Success; `detail` is what was seen.
    pub(crate) fn done(detail: impl Into<Value>) -> Self {
        Self { outcome: Outcome::Done, errno: None, detail: detail.into() }
    }

    /// A refusal without an errno.
    pub(crate) fn refused(detail: impl Into<Value>) -> Self {
        Self { outcome: Outcome::Refused, errno: None, detail: detail.into() }
    }

    /// The target is not there.
    pub(crate) fn absent(detail: impl Into<Value>) -> Self {
        Self { outcome: Outcome::Absent, errno: None, detail: detail.into() }
    }

    /// Any other end.
    pub(crate) fn error(detail: impl Into<Value>) -> Self {
        Self { outcome: Outcome::Error, errno: None, detail: detail.into() }
    }

    /// An errno, sorted, with `detail`.
    pub(crate) fn errno(errno: i32, detail: impl Into<Value>) -> Self {
        Self { outcome: Outcome::of_errno(errno), errno: Some(errno), detail: detail.into() }
    }

    /// Returns the object to print.
    pub(crate) fn object(&self, probe: &str) -> Value {
        let mut object = json!({ "probe": probe, "outcome": self.outcome.word(), "detail": self.detail });
        if let Some(errno) = self.errno {
            object["errno"] = errno_name(errno).into();
        }
        object
    }
}

impl From<io::Error> for Report {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(errno) => Self::errno(errno, error.to_string()),
            None if error.kind() == io::ErrorKind::NotFound => Self::absent(error.to_string()),
            None => Self::error(error.to_string()),
        }
    }
}

impl From<io::Result<Value>> for Report {
    fn from(result: io::Result<Value>) -> Self {
        match result {
            Ok(detail) => Self::done(detail),
            Err(error) => error.into(),
        }
    }
}

/// Returns the errno's symbolic name, or its number for rare ones.
pub(crate) fn errno_name(errno: i32) -> String {
    macro_rules! names {
        ($($name:ident),* $(,)?) => {
            match errno { $(libc::$name => stringify!($name).to_owned(),)* other => format!("errno {other}") }
        };
    }
    names!(
        EPERM,
        ENOENT,
        ESRCH,
        EINTR,
        EIO,
        ENXIO,
        E2BIG,
        ENOEXEC,
        EBADF,
        ECHILD,
        EAGAIN,
        ENOMEM,
        EACCES,
        EFAULT,
        EBUSY,
        EEXIST,
        EXDEV,
        ENODEV,
        ENOTDIR,
        EISDIR,
        EINVAL,
        ENFILE,
        EMFILE,
        ENOTTY,
        ETXTBSY,
        EFBIG,
        ENOSPC,
        ESPIPE,
        EROFS,
        EMLINK,
        EPIPE,
        ERANGE,
        EDEADLK,
        ENAMETOOLONG,
        ENOSYS,
        ENOTEMPTY,
        ELOOP,
        EOPNOTSUPP,
        EPROTO,
        EOVERFLOW,
        EUSERS,
        ENOTSOCK,
        EDESTADDRREQ,
        EMSGSIZE,
        EPROTOTYPE,
        ENOPROTOOPT,
        EPROTONOSUPPORT,
        ESOCKTNOSUPPORT,
        EAFNOSUPPORT,
        EADDRINUSE,
        EADDRNOTAVAIL,
        ENETDOWN,
        ENETUNREACH,
        ECONNABORTED,
        ECONNRESET,
        ENOBUFS,
        EISCONN,
        ENOTCONN,
        ETIMEDOUT,
        ECONNREFUSED,
        EHOSTDOWN,
        EHOSTUNREACH,
        EALREADY,
        EINPROGRESS,
        EDQUOT,
        ENOKEY,
        EKEYREJECTED,
        ESTALE,
    )
}
