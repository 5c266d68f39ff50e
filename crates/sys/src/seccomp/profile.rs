//! The decisions of a filter as plain data: rules by system-call number, each an action or a condition on
//! arguments.
//!
//! A profile says nothing about instructions and knows no names; numbers are those of the x86-64 table.

/// What the kernel does with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The call runs.
    Allow,
    /// The call does not run and fails with this error number. With 0 it returns 0, as if it had succeeded.
    Errno(u16),
    /// The whole process dies with SIGSYS.
    KillProcess,
}

/// Every rule of a filter, and what happens to calls no rule names.
#[derive(Clone, Copy, Debug)]
pub struct Profile<'a> {
    /// One rule per call, in ascending order of `number`.
    pub rules: &'a [Rule<'a>],
    /// What happens to a number that has no rule.
    pub unknown: Action,
}

/// What happens to one call.
#[derive(Clone, Copy, Debug)]
pub struct Rule<'a> {
    /// The call's number in the x86-64 table, below 2³⁰.
    pub number: u32,
    /// What happens to it.
    pub verdict: Verdict<'a>,
}

/// An action, or a choice that depends on the call's arguments.
#[derive(Clone, Copy, Debug)]
pub enum Verdict<'a> {
    /// One action for all arguments.
    Always(Action),
    /// Allowed when every condition of at least one alternative holds.
    AllowIf {
        /// The alternatives; none of them is empty.
        any: &'a [&'a [Condition<'a>]],
        /// What happens when no alternative holds.
        otherwise: Action,
    },
}

/// A test of one argument, which is masked before it is compared.
///
/// The mask also says how much of the 64-bit register the kernel looks at. For a parameter that is an `int`
/// in the kernel it must lie within the low 32 bits: the kernel drops the rest, and a caller may leave
/// anything in it.
#[derive(Clone, Copy, Debug)]
pub struct Condition<'a> {
    /// Which argument, 0 to 5.
    pub argument: u8,
    /// The bits that are compared; not zero.
    pub mask: u64,
    /// The values they are compared with.
    pub expect: Expect<'a>,
}

/// The values a masked argument must have, or must not have.
#[derive(Clone, Copy, Debug)]
pub enum Expect<'a> {
    /// It is one of these.
    OneOf(&'a [u64]),
    /// It is none of these.
    NoneOf(&'a [u64]),
}
