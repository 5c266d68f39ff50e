//! Values that the world's servers send and the tests expect: keys, token counts, final texts. The program and the library both read them
//! here, so that they cannot diverge.

/// The key that `api.anthropic.com` accepts until [`World::expect_key`](crate::World::expect_key) sets another.
pub const ANTHROPIC_KEY: &str = "sk-ant-canary-v7Qm2KxT9bRw4LcN8dYs3HfZ6gJp1aEu5oBi";
/// The initial key of `api.openai.com`.
pub const OPENAI_KEY: &str = "sk-canary-t4WnC8zXk2VqJ6mLr9SgD3yPb7HfA1eGu5oEi0Kx";
/// The initial key of `openrouter.ai`.
pub const OPENROUTER_KEY: &str = "sk-or-canary-h3ZbR7vMq1KtY5nXc9WdJ2sLp6GfE8aUo4iTg0B";

/// The tokens that each answer of a model reports as read and written.
pub const INPUT_TOKENS: u64 = 1200;
/// See [`INPUT_TOKENS`].
pub const OUTPUT_TOKENS: u64 = 34;

/// A model's answer without a task, or without a tool for it.
pub const PLAIN_ANSWER: &str = "Hello from the model of the test world.";
/// A model's answer once the file is written and the command has run.
pub const TASK_ANSWER: &str = "The task of the test world is done.";
