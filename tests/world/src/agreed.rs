//! What the servers of the world say and the tests expect: keys, token counts, final words. The program and the library both
//! read them here, so that neither can drift from the other.

/// The key that `api.anthropic.com` accepts until [`World::expect_key`](crate::World::expect_key) sets another.
pub const ANTHROPIC_KEY: &str = "sk-ant-canary-v7Qm2KxT9bRw4LcN8dYs3HfZ6gJp1aEu5oBi";
/// The same for `api.openai.com`.
pub const OPENAI_KEY: &str = "sk-canary-t4WnC8zXk2VqJ6mLr9SgD3yPb7HfA1eGu5oEi0Kx";
/// The same for `openrouter.ai`.
pub const OPENROUTER_KEY: &str = "sk-or-canary-h3ZbR7vMq1KtY5nXc9WdJ2sLp6GfE8aUo4iTg0B";

/// Tokens that each answer of a model says it read and wrote.
pub const INPUT_TOKENS: u64 = 1200;
/// See [`INPUT_TOKENS`].
pub const OUTPUT_TOKENS: u64 = 34;

/// What a model says where no task is given to it, or nothing to do it with.
pub const PLAIN_ANSWER: &str = "Hello from the model of the test world.";
/// What it says once the file is written and the command has run.
pub const TASK_ANSWER: &str = "The task of the test world is done.";
