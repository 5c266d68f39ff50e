//! Moves what is ready between the command's terminal and the person's, and hangs the command's up where that is in vain.

use super::{Source, State};

impl State {
    /// Moves what is ready between the terminals.
    pub(super) fn pass_terminal(&mut self, ready: &[Source]) {
        let Some(relay) = &mut self.relay else { return };
        if ready.contains(&Source::Output) || ready.contains(&Source::Room) {
            relay.show_output();
            relay.give_input();
        }
        if ready.contains(&Source::Input) {
            relay.take_input();
        }
        // A denial is shown after what the command had written before it, even if the terminal is new or not polled for now.
        if ready.contains(&Source::Notices) {
            relay.show_output();
        }
        self.hang_up_if_closed();
    }

    /// Hangs the command's terminal up once the person's side takes no more: the command learns of it so, as of a closed pipe.
    pub(super) fn hang_up_if_closed(&mut self) {
        if let Some(relay) = self.relay.take_if(|relay| relay.is_closed()) {
            self.unwritten = relay.unwritten();
        }
    }
}
