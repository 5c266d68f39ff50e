//! Two judges of one call that share no code: an interpreter of the compiled program, and a linear reading of
//! the profile it was compiled from.

use super::super::assemble::Instruction;
use super::super::{Action, Condition, Expect, Filter, Profile, Verdict};

pub(super) const X86_64: u32 = 0xc000_003e;

/// A system call as the kernel shows it to a filter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) architecture: u32,
    pub(super) number: u32,
    pub(super) arguments: [u64; 6],
}

impl Call {
    pub(super) fn new(number: u32, arguments: [u64; 6]) -> Self {
        Self { architecture: X86_64, number, arguments }
    }

    /// The 32-bit word at an offset of `struct seccomp_data`: number, architecture, address, six arguments.
    fn word(&self, offset: u32) -> u32 {
        match offset {
            0 => self.number,
            4 => self.architecture,
            16..64 => {
                let argument = self.arguments[(offset as usize - 16) / 8];
                if offset.is_multiple_of(8) { argument as u32 } else { (argument >> 32) as u32 }
            }
            other => unreachable!("offset {other}"),
        }
    }
}

/// What the program returns, and after how many instructions.
pub(super) fn run(filter: &Filter, call: &Call) -> (u32, usize) {
    let program = filter.program();
    let (mut accumulator, mut at, mut steps) = (0, 0, 0);
    loop {
        let Instruction { code, if_true, if_false, operand } = program[at];
        steps += 1;
        let branch = |taken| usize::from(if taken { if_true } else { if_false });
        at += 1;
        // The numbers are those of linux/bpf_common.h, written out so that the assembler's are checked.
        match code {
            0x20 => accumulator = call.word(operand),
            0x54 => accumulator &= operand,
            0x05 => at += operand as usize,
            0x15 => at += branch(accumulator == operand),
            0x35 => at += branch(accumulator >= operand),
            0x06 => return (operand, steps),
            other => unreachable!("instruction {other:#x}"),
        }
    }
}

/// What the profile says, read rule by rule.
pub(super) fn judge(profile: &Profile<'_>, call: &Call) -> u32 {
    if call.architecture != X86_64 || (0x4000_0000..u32::MAX).contains(&call.number) {
        return value(Action::KillProcess);
    }
    let rule = profile.rules.iter().find(|rule| rule.number == call.number);
    value(match rule.map(|rule| rule.verdict) {
        None => profile.unknown,
        Some(Verdict::Always(action)) => action,
        Some(Verdict::AllowIf { any, otherwise }) => {
            let holds = any.iter().any(|all| all.iter().all(|condition| holds(condition, call)));
            if holds { Action::Allow } else { otherwise }
        }
    })
}

fn holds(condition: &Condition<'_>, call: &Call) -> bool {
    let masked = call.arguments[usize::from(condition.argument)] & condition.mask;
    match condition.expect {
        Expect::OneOf(values) => values.contains(&masked),
        Expect::NoneOf(values) => !values.contains(&masked),
    }
}

/// The kernel's numbers, from linux/seccomp.h.
fn value(action: Action) -> u32 {
    match action {
        Action::Allow => 0x7fff_0000,
        Action::Errno(number) => 0x0005_0000 + u32::from(number),
        Action::KillProcess => 0x8000_0000,
    }
}
