//! An assembler for the few classic BPF instructions a filter needs. It writes from the last instruction to
//! the first.
//!
//! Every jump in BPF goes forward, so writing backwards means that each target is already in place and has a
//! known distance. Conditional jumps reach 255 instructions; what lies further is reached through a relay
//! that is put between. Nothing here knows system calls.

/// The most instructions a filter may have; the kernel's own limit is 4096 (`BPF_MAXINSNS`).
pub(super) const CAPACITY: usize = 1024;

/// The furthest target a conditional jump is given directly. The field reaches 255; one is kept for the relay
/// of the jump's other target, which may come to lie between.
const REACH: usize = 254;

const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const JUMP_IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// One instruction, laid out as the kernel's `struct sock_filter`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Instruction {
    pub(super) code: u16,
    pub(super) if_true: u8,
    pub(super) if_false: u8,
    pub(super) operand: u32,
}

const _: () = assert!(size_of::<Instruction>() == size_of::<libc::sock_filter>());
const _: () = assert!(align_of::<Instruction>() == align_of::<libc::sock_filter>());

/// The place of an instruction that has been written.
#[derive(Clone, Copy)]
pub(super) struct Label(usize);

/// A program under construction: what has been written fills the array from `start` to its end.
pub(super) struct Assembler {
    pub(super) instructions: [Instruction; CAPACITY],
    pub(super) start: usize,
}

impl Assembler {
    pub(super) const fn new() -> Self {
        let blank = Instruction { code: RETURN, if_true: 0, if_false: 0, operand: 0 };
        Self { instructions: [blank; CAPACITY], start: CAPACITY }
    }

    /// Ends the program with a value for the kernel.
    pub(super) const fn ret(&mut self, value: u32) -> Label {
        self.put(RETURN, 0, 0, value)
    }

    /// Loads the 32-bit word at this offset of `struct seccomp_data`, then goes on at `next`.
    pub(super) const fn load(&mut self, offset: u32, next: Label) -> Label {
        self.fall_into(next);
        self.put(LOAD_WORD, 0, 0, offset)
    }

    /// Keeps only the masked bits of what was loaded, then goes on at `next`.
    pub(super) const fn and(&mut self, mask: u32, next: Label) -> Label {
        self.fall_into(next);
        self.put(AND, 0, 0, mask)
    }

    /// Goes to `then` if what was loaded equals `value`.
    pub(super) const fn if_equal(&mut self, value: u32, then: Label, or_else: Label) -> Label {
        self.branch(JUMP_IF_EQUAL, value, then, or_else)
    }

    /// Goes to `then` if what was loaded is at least `value`, unsigned.
    pub(super) const fn if_at_least(&mut self, value: u32, then: Label, or_else: Label) -> Label {
        self.branch(JUMP_IF_AT_LEAST, value, then, or_else)
    }

    const fn branch(&mut self, code: u16, value: u32, then: Label, or_else: Label) -> Label {
        let then = self.within_reach(then);
        let or_else = self.within_reach(or_else);
        let (if_true, if_false) = (self.distance(then), self.distance(or_else));
        assert!(if_true <= 255 && if_false <= 255, "a jump does not fit its field");
        self.put(code, if_true as u8, if_false as u8, value)
    }

    /// The label itself, or that of a stand-in near enough to jump to: a copy of the return it names, or a
    /// relay.
    const fn within_reach(&mut self, label: Label) -> Label {
        if self.distance(label) <= REACH {
            return label;
        }
        let target = self.instructions[label.0];
        if target.code == RETURN { self.ret(target.operand) } else { self.relay(label) }
    }

    /// Makes `next` the instruction that follows, for those that have no jump of their own.
    const fn fall_into(&mut self, next: Label) {
        if self.distance(next) > 0 {
            self.relay(next);
        }
    }

    const fn relay(&mut self, target: Label) -> Label {
        self.put(JUMP, 0, 0, self.distance(target) as u32)
    }

    /// Returns the number of instructions that the next one written must skip to reach the label.
    const fn distance(&self, label: Label) -> usize {
        label.0 - self.start
    }

    const fn put(&mut self, code: u16, if_true: u8, if_false: u8, operand: u32) -> Label {
        assert!(self.start > 0, "the filter has too many instructions");
        self.start -= 1;
        self.instructions[self.start] = Instruction { code, if_true, if_false, operand };
        Label(self.start)
    }
}
