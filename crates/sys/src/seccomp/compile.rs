//! Turns a `Profile` into a `Filter`: neighbouring numbers with one action become a range, the ranges a
//! balanced tree.
//!
//! ```text
//! architecture is x86-64? ── no ──► kill
//!   └─► tree over the number ─► action
//!                            └► conditions on arguments ─► allow, or the rule's error
//! ```
//!
//! The shape is what makes a filter cheap to install: the kernel runs it once for each number it knows, to
//! learn which calls need no filter later. It can do so only while nothing but the architecture, the number,
//! comparisons and `and` are used before the decision, so arguments must never be loaded on the way down the
//! tree.

use std::mem::offset_of;

use super::assemble::{Assembler, Label};
use super::{Action, Condition, Expect, Filter, Profile, Rule, Verdict};

/// `AUDIT_ARCH_X86_64`: ELF machine 62, 64-bit, little-endian (linux/audit.h). The libc crate does not carry
/// it.
const ARCHITECTURE: u32 = 0xc000_003e;

/// `__X32_SYSCALL_BIT`. From here on numbers are the x32 table's, which shares the architecture with x86-64.
const X32: u32 = 0x4000_0000;

/// The number a tracer sets to skip a call. It lies among x32's and is none of them.
const SKIPPED: u32 = u32::MAX;

/// Twice what a profile of every call would need.
const MAX_RANGES: usize = 1024;
const MAX_ACTIONS: usize = 16;

impl Filter {
    /// Compiles a profile. In a `const` or a `static` this happens while building.
    ///
    /// # Panics
    ///
    /// When the profile is not well formed: rules out of order or doubled, a number of the x32 table, an
    /// argument above 5, an empty mask, list or alternative, a value with bits outside its mask; or when it
    /// is too large. In a `const` context each is a build error.
    pub const fn compile(profile: &Profile<'_>) -> Self {
        let mut compiler = Compiler::new();
        compiler.add_rules(profile);
        let tree = compiler.tree(0, compiler.range_count);
        let kill = compiler.action(Action::KillProcess);
        let program = &mut compiler.program;
        let known = program.load(offset_of!(libc::seccomp_data, nr) as u32, tree);
        let architecture = program.if_equal(ARCHITECTURE, known, kill);
        program.load(offset_of!(libc::seccomp_data, arch) as u32, architecture);
        Self { instructions: compiler.program.instructions, start: compiler.program.start }
    }
}

/// All numbers from `first` up to the next range's go to `target`.
#[derive(Clone, Copy)]
struct Range {
    first: u32,
    target: Target,
}

/// The target of a range. Actions are kept as values so that equal neighbours can be merged.
#[derive(Clone, Copy)]
enum Target {
    Action(Action),
    Conditions(Label),
}

struct Compiler {
    program: Assembler,
    ranges: [Range; MAX_RANGES],
    range_count: usize,
    actions: [Option<(u32, Label)>; MAX_ACTIONS],
}

impl Compiler {
    const fn new() -> Self {
        let nowhere = Range { first: 0, target: Target::Action(Action::KillProcess) };
        Self {
            program: Assembler::new(),
            ranges: [nowhere; MAX_RANGES],
            range_count: 0,
            actions: [None; MAX_ACTIONS],
        }
    }

    /// Writes the conditions of every rule and lists the ranges, with the gaps between rules and the x32
    /// table.
    const fn add_rules(&mut self, profile: &Profile<'_>) {
        let mut free = 0;
        let mut index = 0;
        while index < profile.rules.len() {
            let rule = &profile.rules[index];
            assert!(rule.number >= free, "rules must be in ascending order, one a number");
            assert!(rule.number < X32, "the number is not of the x86-64 table");
            if rule.number > free {
                self.range(free, Target::Action(profile.unknown));
            }
            let target = self.target(rule);
            self.range(rule.number, target);
            free = rule.number + 1;
            index += 1;
        }
        if free < X32 {
            self.range(free, Target::Action(profile.unknown));
        }
        self.range(X32, Target::Action(Action::KillProcess));
        self.range(SKIPPED, Target::Action(profile.unknown));
    }

    const fn target(&mut self, rule: &Rule<'_>) -> Target {
        match rule.verdict {
            Verdict::Always(action) => Target::Action(action),
            Verdict::AllowIf { any, otherwise } => {
                assert!(!any.is_empty(), "a conditional rule needs an alternative");
                let allow = self.action(Action::Allow);
                let mut entry = self.action(otherwise);
                let mut index = any.len();
                while index > 0 {
                    index -= 1;
                    entry = self.alternative(any[index], allow, entry);
                }
                Target::Conditions(entry)
            }
        }
    }

    /// Every condition holds, or it goes on at `fail`.
    const fn alternative(&mut self, conditions: &[Condition<'_>], pass: Label, fail: Label) -> Label {
        assert!(!conditions.is_empty(), "an alternative needs a condition");
        let mut next = pass;
        let mut index = conditions.len();
        while index > 0 {
            index -= 1;
            next = self.condition(&conditions[index], next, fail);
        }
        next
    }

    const fn condition(&mut self, condition: &Condition<'_>, pass: Label, fail: Label) -> Label {
        let Condition { argument, mask, expect } = *condition;
        assert!(argument < 6, "a call has six arguments");
        assert!(mask != 0, "a mask must keep a bit");
        let (values, hit, miss) = match expect {
            Expect::OneOf(values) => (values, pass, fail),
            Expect::NoneOf(values) => (values, fail, pass),
        };
        assert!(!values.is_empty(), "a condition needs a value");
        // The machine is little-endian: the low half of an argument comes first.
        let low = offset_of!(libc::seccomp_data, args) as u32 + 8 * argument as u32;
        let high = low + 4;
        let (low_mask, high_mask) = (mask as u32, (mask >> 32) as u32);
        let both = low_mask != 0 && high_mask != 0;
        let mut next = miss;
        let mut index = values.len();
        while index > 0 {
            index -= 1;
            let value = values[index];
            assert!(value & !mask == 0, "a value has bits outside its mask");
            let (low_value, high_value) = (value as u32, (value >> 32) as u32);
            if both {
                let equal = self.program.if_equal(low_value, hit, next);
                let equal = self.masked_load(low, low_mask, equal);
                let equal = self.program.if_equal(high_value, equal, next);
                next = self.masked_load(high, high_mask, equal);
            } else {
                let half = if high_mask == 0 { low_value } else { high_value };
                next = self.program.if_equal(half, hit, next);
            }
        }
        match (low_mask, high_mask) {
            (_, 0) => self.masked_load(low, low_mask, next),
            (0, _) => self.masked_load(high, high_mask, next),
            _ => next,
        }
    }

    const fn masked_load(&mut self, offset: u32, mask: u32, next: Label) -> Label {
        let next = if mask == u32::MAX { next } else { self.program.and(mask, next) };
        self.program.load(offset, next)
    }

    /// Adds a range, or lets the one before it grow.
    const fn range(&mut self, first: u32, target: Target) {
        if self.range_count > 0
            && let Target::Action(new) = target
            && let Target::Action(last) = self.ranges[self.range_count - 1].target
            && value(new) == value(last)
        {
            return;
        }
        assert!(self.range_count < MAX_RANGES, "the profile has too many ranges");
        self.ranges[self.range_count] = Range { first, target };
        self.range_count += 1;
    }

    /// A balanced search tree over `ranges[from..to]`.
    const fn tree(&mut self, from: usize, to: usize) -> Label {
        if to - from == 1 {
            return match self.ranges[from].target {
                Target::Action(action) => self.action(action),
                Target::Conditions(label) => label,
            };
        }
        let middle = from + (to - from) / 2;
        let upper = self.tree(middle, to);
        let lower = self.tree(from, middle);
        self.program.if_at_least(self.ranges[middle].first, upper, lower)
    }

    /// The instruction that returns this action; each action is written once.
    const fn action(&mut self, action: Action) -> Label {
        let value = value(action);
        let mut index = 0;
        while let Some((known, label)) = self.actions[index] {
            if known == value {
                return label;
            }
            index += 1;
            assert!(index < MAX_ACTIONS, "the profile has too many different actions");
        }
        let label = self.program.ret(value);
        self.actions[index] = Some((value, label));
        label
    }
}

/// Returns the kernel's value for an action (seccomp(2)).
const fn value(action: Action) -> u32 {
    match action {
        Action::Allow => libc::SECCOMP_RET_ALLOW,
        Action::Errno(number) => libc::SECCOMP_RET_ERRNO | number as u32,
        Action::KillProcess => libc::SECCOMP_RET_KILL_PROCESS,
    }
}
