//! The platform that this program runs on.

/// Its operating system and processor, by the names that images use.
pub(crate) const HERE: (&str, &str) = ("linux", "amd64");

/// Returns it as people write it.
pub(crate) fn here() -> String {
    format!("{}/{}", HERE.0, HERE.1)
}

/// Returns the highest level of x86-64 that this processor has, by the psABI.
pub(crate) fn level_here() -> u32 {
    macro_rules! has {
        ($($feature:tt),*) => { $(std::arch::is_x86_feature_detected!($feature))&&* };
    }
    let second = has!("cmpxchg16b", "popcnt", "sse3", "sse4.1", "sse4.2", "ssse3");
    let third = second && has!("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "lzcnt", "movbe");
    let fourth = third && has!("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl");
    1 + u32::from(second) + u32::from(third) + u32::from(fourth)
}
