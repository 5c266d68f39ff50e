//! Random profiles, compiled, decide random calls as the profile says; and the limits of the program's form.

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::select;

use super::super::{Action, Condition, Expect, Filter, Profile, Rule, Verdict};
use super::evaluate::{Call, X86_64, judge, run};

const EPERM: Action = Action::Errno(libc::EPERM as u16);
const ENOSYS: Action = Action::Errno(libc::ENOSYS as u16);

/// A profile borrows its lists; a test may leak them.
fn leak<T>(list: Vec<T>) -> &'static [T] {
    list.leak()
}

fn action() -> impl Strategy<Value = Action> {
    select(vec![Action::Allow, EPERM, ENOSYS, Action::KillProcess])
}

/// Values from a small pool, so that conditions and arguments often meet.
fn word() -> impl Strategy<Value = u64> {
    let few = select(vec![0, 1, 2, 5, 0xf, 0xffff_ffff, 1 << 32, (1 << 32) | 1, (2 << 32) | 1, u64::MAX]);
    prop_oneof![8 => few, 1 => any::<u64>()]
}

fn condition() -> impl Strategy<Value = Condition<'static>> {
    let mask = prop_oneof![
        select(vec![0xffff_ffff_u64, u64::MAX, 0xf, 0xf_0000_0000, 0x3_0000_0003]),
        any::<u64>().prop_filter("a mask must keep a bit", |mask| *mask != 0),
    ];
    (0..6u8, mask, vec(word(), 1..5), any::<bool>()).prop_map(|(argument, mask, values, wanted)| {
        let values = leak(values.into_iter().map(|value| value & mask).collect());
        let expect = if wanted { Expect::OneOf(values) } else { Expect::NoneOf(values) };
        Condition { argument, mask, expect }
    })
}

fn verdict() -> impl Strategy<Value = Verdict<'static>> {
    let any = vec(vec(condition(), 1..3).prop_map(leak), 1..3).prop_map(leak);
    prop_oneof![
        8 => action().prop_map(Verdict::Always),
        1 => (any, action()).prop_map(|(any, otherwise)| Verdict::AllowIf { any, otherwise }),
    ]
}

/// Up to 120 rules, dense enough for ranges to merge and long enough for jumps to need relays.
fn profile() -> impl Strategy<Value = Profile<'static>> {
    (btree_map(0..200u32, verdict(), 0..120), action()).prop_map(|(rules, unknown)| {
        let rules = rules.into_iter().map(|(number, verdict)| Rule { number, verdict }).collect();
        Profile { rules: leak(rules), unknown }
    })
}

fn call() -> impl Strategy<Value = Call> {
    let number = prop_oneof![
        20 => 0..205u32,
        1 => any::<u32>(),
        1 => select(vec![0x3fff_ffff, 0x4000_0000, 0x4000_0001, u32::MAX - 1, u32::MAX]),
    ];
    let architecture = prop_oneof![20 => Just(X86_64), 1 => Just(0x4000_0003), 1 => any::<u32>()];
    let arguments = [word(), word(), word(), word(), word(), word()];
    (architecture, number, arguments).prop_map(|(architecture, number, arguments)| Call {
        architecture,
        number,
        arguments,
    })
}

proptest! {
    #[test]
    fn the_program_decides_as_the_profile_reads(profile in profile(), calls in vec(call(), 200)) {
        let filter = Filter::compile(&profile);
        for call in calls {
            prop_assert_eq!(run(&filter, &call).0, judge(&profile, &call), "{:?}", call);
        }
    }

    #[test]
    fn every_number_alone_is_decided_as_the_profile_reads(profile in profile()) {
        let filter = Filter::compile(&profile);
        for number in 0..205 {
            let call = Call::new(number, [0; 6]);
            prop_assert_eq!(run(&filter, &call).0, judge(&profile, &call), "{}", number);
        }
    }
}

fn alternating(count: u32) -> Vec<Rule<'static>> {
    let verdict = |number| Verdict::Always(if number % 2 == 0 { Action::Allow } else { EPERM });
    (0..count).map(|number| Rule { number, verdict: verdict(number) }).collect()
}

/// THREATS, escapes: the i386 table comes under its own architecture, x32's under ours.
#[test]
fn other_tables_are_killed() {
    let profile = Profile { rules: &alternating(400), unknown: Action::Allow };
    let filter = Filter::compile(&profile);
    let killed = |call: Call| run(&filter, &call).0 == libc::SECCOMP_RET_KILL_PROCESS;
    let i386 = 0x4000_0003;
    let aarch64 = 0xc000_00b7;
    for architecture in [i386, aarch64, 0, u32::MAX] {
        for number in [0, 1, 59, 400, 0x4000_0000, u32::MAX] {
            assert!(killed(Call { architecture, ..Call::new(number, [0; 6]) }), "{architecture:#x} {number}");
        }
    }
    for number in [0x4000_0000, 0x4000_0000 + 59, 0x4000_0000 + 512, 0x7fff_ffff, 0x8000_0000, u32::MAX - 1] {
        assert!(killed(Call::new(number, [0; 6])), "{number:#x}");
    }
    assert!(!killed(Call::new(0x3fff_ffff, [0; 6])), "the last number below x32's is merely unknown");
    assert!(!killed(Call::new(u32::MAX, [0; 6])), "a skipped call is not one of x32's");
}

/// No two neighbours agree, so nothing merges and the upper half of the tree lies out of a jump's reach.
#[test]
fn a_program_longer_than_a_jump_is_still_right() {
    let rules = alternating(420);
    let profile = Profile { rules: &rules, unknown: ENOSYS };
    let filter = Filter::compile(&profile);
    assert!(filter.len() > 2 * 255, "{} instructions put nothing out of reach", filter.len());
    for number in 0..430 {
        let call = Call::new(number, [0; 6]);
        let (decision, steps) = run(&filter, &call);
        assert_eq!(decision, judge(&profile, &call), "{number}");
        assert!(steps <= 18, "{number} takes {steps} instructions: the tree is not balanced");
    }
}

/// A long chain of values pushes both targets of its first comparison out of reach at once.
#[test]
fn a_condition_longer_than_a_jump_is_still_right() {
    let values: Vec<u64> = (0..300).map(|index| index * 3).collect();
    let conditions = [Condition { argument: 1, mask: 0xffff_ffff, expect: Expect::OneOf(&values) }];
    let verdict = Verdict::AllowIf { any: &[&conditions], otherwise: EPERM };
    let profile = Profile { rules: &[Rule { number: 7, verdict }], unknown: ENOSYS };
    let filter = Filter::compile(&profile);
    for value in 0..910 {
        let call = Call::new(7, [0, value, 0, 0, 0, 0]);
        assert_eq!(run(&filter, &call).0, judge(&profile, &call), "{value}");
    }
}

#[test]
fn neighbours_that_agree_become_one_range() {
    let rules: Vec<_> =
        (0..300).map(|number| Rule { number, verdict: Verdict::Always(Action::Allow) }).collect();
    let filter = Filter::compile(&Profile { rules: &rules, unknown: ENOSYS });
    // The architecture (2), the number (1), three comparisons, three returns.
    assert!(filter.len() <= 9, "{} instructions", filter.len());
}

#[test]
fn both_halves_of_a_long_argument_are_compared() {
    let value = 0x0000_0002_0000_0001;
    let conditions = [Condition { argument: 5, mask: u64::MAX, expect: Expect::OneOf(&[value]) }];
    let verdict = Verdict::AllowIf { any: &[&conditions], otherwise: EPERM };
    let filter = Filter::compile(&Profile { rules: &[Rule { number: 0, verdict }], unknown: ENOSYS });
    let allowed =
        |argument| run(&filter, &Call::new(0, [0, 0, 0, 0, 0, argument])).0 == libc::SECCOMP_RET_ALLOW;
    assert!(allowed(value));
    assert!(!allowed(1) && !allowed(2 << 32) && !allowed(value.rotate_left(32)));
}

#[test]
fn an_int_is_judged_without_what_lies_above_it() {
    let conditions = [Condition { argument: 1, mask: 0xffff_ffff, expect: Expect::NoneOf(&[0x5412]) }];
    let verdict = Verdict::AllowIf { any: &[&conditions], otherwise: EPERM };
    let filter = Filter::compile(&Profile { rules: &[Rule { number: 16, verdict }], unknown: ENOSYS });
    for above in [0, 1 << 32, 0xdead_beef << 32] {
        let call = Call::new(16, [0, above | 0x5412, 0, 0, 0, 0]);
        assert_eq!(run(&filter, &call).0, libc::SECCOMP_RET_ERRNO | 1, "{above:#x}");
    }
}

#[test]
#[should_panic = "ascending order"]
fn a_number_with_two_rules_does_not_compile() {
    let rule = Rule { number: 3, verdict: Verdict::Always(Action::Allow) };
    Filter::compile(&Profile { rules: &[rule, rule], unknown: ENOSYS });
}

#[test]
#[should_panic = "bits outside its mask"]
fn a_value_its_mask_hides_does_not_compile() {
    let conditions = [Condition { argument: 0, mask: 0xf, expect: Expect::OneOf(&[0x10]) }];
    let verdict = Verdict::AllowIf { any: &[&conditions], otherwise: EPERM };
    Filter::compile(&Profile { rules: &[Rule { number: 3, verdict }], unknown: ENOSYS });
}
