//! Why a step of the plan failed.

use std::borrow::Cow;
use std::io;

use rustix::io::Errno;

use crate::error::Error;
use crate::source::CopyError;

/// `ELOOP`: openat2(2) met a symbolic link on a path that may have none.
const ELOOP: i32 = Errno::LOOP.raw_os_error();
/// `EXDEV`: a link of an image, followed by openat2(2), led into a mount.
const EXDEV: i32 = Errno::XDEV.raw_os_error();
/// `ENODEV`: the kernel does not have this file system.
const ENODEV: i32 = Errno::NODEV.raw_os_error();

/// Why a step failed.
#[derive(Debug)]
pub(super) enum StepError {
    Io(io::Error),
    Source(Error),
    Copy(CopyError),
    Refused(Cow<'static, str>),
}

impl StepError {
    /// Returns why a workspace could not be overlaid.
    pub(super) fn of_overlay(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(ELOOP | ENODEV) => error.into(),
            _ => format!(
                "{error}; the folder and the state directory must be on file systems that overlayfs can use"
            )
            .into(),
        }
    }

    pub(super) fn errno(&self) -> Option<i32> {
        match self {
            Self::Io(error) | Self::Source(Error::Mount { source: error, .. }) => error.raw_os_error(),
            Self::Copy(CopyError::Below { source, .. }) => source.raw_os_error(),
            Self::Source(_) | Self::Copy(_) | Self::Refused(_) => None,
        }
    }

    /// Returns the cause in words. `is_image` says whether the root is an image's.
    pub(super) fn cause(self, is_image: bool) -> String {
        match self {
            Self::Io(error) if is_image && matches!(error.raw_os_error(), Some(ELOOP | EXDEV)) => {
                "a link of the image is on the way, and none is followed".into()
            }
            Self::Io(error) => error.to_string(),
            Self::Source(error) => error.to_string(),
            Self::Copy(error) => error.to_string(),
            Self::Refused(why) => why.into_owned(),
        }
    }
}

impl From<io::Error> for StepError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Error> for StepError {
    fn from(error: Error) -> Self {
        Self::Source(error)
    }
}

impl From<CopyError> for StepError {
    fn from(error: CopyError) -> Self {
        match error {
            CopyError::Itself(error) => Self::Io(error),
            error @ (CopyError::TooLarge | CopyError::Below { .. }) => Self::Copy(error),
        }
    }
}

impl From<String> for StepError {
    fn from(why: String) -> Self {
        Self::Refused(why.into())
    }
}

impl From<&'static str> for StepError {
    fn from(why: &'static str) -> Self {
        Self::Refused(why.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_said_of_a_source_is_kept_beside_its_name() {
        let error: StepError = Error::Mount { path: "/srv/x".into(), source: Errno::NOSPC.into() }.into();
        assert_eq!(error.errno(), Some(Errno::NOSPC.raw_os_error()));
        assert!(error.cause(false).contains("/srv/x"));
        let below = CopyError::Below { path: "below/x".into(), source: Errno::NOSPC.into() };
        let error: StepError = below.into();
        assert_eq!(error.errno(), Some(Errno::NOSPC.raw_os_error()));
        assert!(error.cause(true).starts_with("below/x: "));
    }

    #[test]
    fn a_link_of_an_image_is_told_of_wherever_it_leads() {
        for errno in [Errno::LOOP, Errno::XDEV] {
            let cause = |is_image| StepError::from(io::Error::from(errno)).cause(is_image);
            assert!(cause(true).contains("a link of the image is on the way"), "{}", cause(true));
            assert!(!cause(false).contains("image"), "{}", cause(false));
        }
    }

    #[test]
    fn file_systems_are_named_only_where_another_one_would_help() {
        for (errno, is_advised) in
            [(Errno::NODEV, false), (Errno::LOOP, false), (Errno::INVAL, true), (Errno::STALE, true)]
        {
            let error = StepError::of_overlay(errno.into());
            assert_eq!(error.errno().is_none(), is_advised, "{errno}");
            assert_eq!(error.cause(false).contains("file systems"), is_advised, "{errno}");
        }
    }
}
