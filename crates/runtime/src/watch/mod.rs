//! Waits, in one thread, for whatever happens first in a run, until the command has ended.

mod clock;
mod end_request;
mod lost;
mod suspend;
mod terminal;

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use egress::{Notice, SidecarMessage, Summary};
use rustix::event::PollFlags;
use sandbox::{Event, Exit, SetUpEnd, Sidecar, Signals, Started, Usage, wait_for};

pub(crate) use self::clock::Clock;
use self::end_request::{EndRequest, GRACE};
use crate::companion::Companions;
use crate::end_signals::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGWINCH};
use crate::error::{Error, plumbing};
use crate::name_files;
use crate::platform::Platform;
use crate::protection::ProtectionChecks;
use crate::report::{CommandEnd, Report};
use crate::set_up_log::SetUpLog;
use crate::sidecar_messages::{self, panicked};
use crate::streams::{RunningCopiers, Unwritten};
use crate::terminal_relay::Relay;

/// How many denials are held back while the command has the whole screen.
const MOST_HELD: usize = 1000;

/// What was seen of a run while it was watched.
pub(crate) struct WatchedRun {
    pub(crate) end: Result<CommandEnd, Error>,
    /// Whether the command began.
    pub(crate) has_begun: bool,
    /// The sidecar's last message, if it has come.
    pub(crate) summary: Option<Summary>,
    /// What the sandbox used, if only the sandbox itself can tell.
    pub(crate) used: Option<Usage>,
}

/// Everything that is watched, and who is told.
pub(crate) struct Watch<'a> {
    pub(crate) sandbox: &'a Started,
    pub(crate) sidecar: &'a Sidecar,
    pub(crate) notices: BorrowedFd<'a>,
    pub(crate) signals: &'a Signals,
    /// Answers the sidecar's questions for credentials.
    pub(crate) platform: Option<Box<Platform>>,
    /// The services beside the command.
    pub(crate) companions: &'a mut Companions,
    /// The copying of the caller's streams and the command's.
    pub(crate) streams: &'a mut RunningCopiers,
    pub(crate) clock: Clock,
    /// How long the command may take once it runs.
    pub(crate) timeout: Duration,
    /// The signal that asks the command to end.
    pub(crate) stop: i32,
    pub(crate) set_up: SetUpLog<'a>,
    pub(crate) report: &'a mut dyn FnMut(Report<'_>),
}

/// What the wait can end with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Sandbox,
    Sidecar,
    Notices,
    Questions,
    Companions,
    Signals,
    Protection,
    Input,
    Output,
    Room,
}

/// The state of the wait.
#[derive(Default)]
struct State {
    relay: Option<Relay>,
    /// What the command wrote to its terminal and could not be passed on.
    unwritten: Option<Unwritten>,
    asked: Option<EndRequest>,
    /// Since when the run is suspended.
    suspended: Option<Instant>,
    started: bool,
    sidecar_gone: bool,
    /// Why the sidecar cannot go on, if it said so.
    failed: Option<Error>,
    /// The sidecar's last message, if it came before the sandbox's.
    summary: Option<Summary>,
    /// What the sandbox used, if only the sandbox itself can tell.
    used: Option<Usage>,
    /// Denials that are reported once the command no longer has the whole screen.
    held: Vec<Notice>,
    protection: ProtectionChecks,
}

impl State {
    fn is_full_screen(&self) -> bool {
        self.relay.as_ref().is_some_and(Relay::is_full_screen)
    }

    /// Whether the end of a set-up command is the run's: it was asked to end, as by a key of the command's terminal.
    fn ends_by(&self, end: SetUpEnd) -> bool {
        let by_key = matches!(end, SetUpEnd::Ended(Exit::Signal(SIGINT | SIGQUIT)));
        self.asked.is_some() || (self.relay.is_some() && by_key)
    }

    /// Whether a command that has ended so was not made to. Otherwise nobody may be there to read its last output. One that answers Ctrl-C
    /// by going on ends by itself.
    fn is_by_itself(&self, end: CommandEnd) -> bool {
        match end {
            CommandEnd::Ended(Exit::Code(_)) => self.kill_at().is_none(),
            CommandEnd::Ended(Exit::Signal(_)) => self.asked.is_none(),
            CommandEnd::TimedOut | CommandEnd::Killed(_) | CommandEnd::NotExecuted(_) => false,
        }
    }

    /// When the command is killed, if it was asked to end and has so long.
    fn kill_at(&self) -> Option<Instant> {
        self.asked.and_then(|asked| asked.kill_at)
    }

    /// Holds a denial back. Beyond the limit denials are dropped; each is in the audit.
    fn hold(&mut self, notice: Notice) {
        if self.held.len() < MOST_HELD {
            self.held.push(notice);
        }
    }
}

impl Watch<'_> {
    /// Waits until the command has ended, or never began.
    pub(crate) fn until_end(mut self) -> WatchedRun {
        let mut state = State::default();
        let end = self.watch(&mut state).map_err(|error| self.cause(error, &mut state));
        self.streams.finish(None);
        // Restores the person's terminal before anything more is reported.
        state.relay = None;
        self.tell_held(&mut state);
        if let (Ok(_), Some(failed)) = (&end, &state.failed) {
            (self.report)(Report::Note(&format!("the sidecar failed to {failed}")));
        }
        WatchedRun { end, has_begun: state.started, summary: state.summary, used: state.used }
    }

    fn watch(&mut self, state: &mut State) -> Result<CommandEnd, Error> {
        loop {
            let ready = self.wait(state)?;
            if ready.contains(&Source::Signals) {
                self.take_signals(state)?;
            }
            // First, for it may bring the terminal. An end counts only after everything that arrived with it.
            let event = if ready.contains(&Source::Sandbox) { self.take_event(state) } else { Ok(None) };
            state.pass_terminal(&ready);
            if !state.is_full_screen() {
                self.tell_held(state);
            }
            if ready.contains(&Source::Notices) {
                self.take_notices(state);
            }
            if ready.contains(&Source::Companions) {
                self.companions.hear(self.report);
            }
            if ready.contains(&Source::Questions) {
                self.answer_questions();
            }
            if ready.contains(&Source::Protection) {
                state.protection.check(self.sandbox)?;
            }
            if let Some(end) = event? {
                state.protection.check_at_end(self.sandbox)?;
                return self.finish(end, state);
            }
            if ready.contains(&Source::Sidecar) && !state.sidecar_gone {
                // Init sees the same and ends the run; the sidecar's last message may still be under way.
                state.sidecar_gone = true;
                self.sandbox.kill();
            }
            self.go_on(state);
            self.mind_the_time(state);
        }
    }

    /// Passes on the last output of a command that has ended.
    fn finish(&mut self, end: CommandEnd, state: &mut State) -> Result<CommandEnd, Error> {
        let signals = state.is_by_itself(end).then_some(self.signals);
        let is_shown = state.relay.as_ref().is_none_or(|relay| relay.show_rest(signals));
        state.hang_up_if_closed();
        self.streams.finish(signals);
        let left = || (!is_shown).then(|| Unwritten::given_up("its terminal"));
        match self.streams.unwritten().or(state.unwritten.take()).or_else(left) {
            None => Ok(end),
            // Its code says already that the run did not come to its end.
            Some(lost) if lost.is_given_up() && !matches!(end, CommandEnd::Ended(Exit::Code(_))) => {
                (self.report)(Report::Note(&format!(
                    "what the command wrote to {} is not whole: {}",
                    lost.name, lost.source
                )));
                Ok(end)
            }
            Some(lost) => Err(lost.into()),
        }
    }

    /// Answers the sidecar's questions for credentials, until it asks no more.
    fn answer_questions(&mut self) {
        let Some(platform) = &mut self.platform else { return };
        let more = platform.answer();
        while let Some(fault) = platform.next_fault() {
            (self.report)(Report::Note(fault));
        }
        if !more {
            self.platform = None;
        }
    }

    fn wait(&self, state: &State) -> Result<Vec<Source>, Error> {
        let mut sources = vec![(Source::Sandbox, self.sandbox.events(), PollFlags::IN)];
        sources.push((Source::Notices, self.notices, PollFlags::IN));
        sources.push((Source::Signals, self.signals.as_fd(), PollFlags::IN));
        let next_check = state.protection.next();
        if next_check.is_none() {
            sources.extend(self.sandbox.protection().map(|fd| (Source::Protection, fd, PollFlags::IN)));
        }
        if let Some(platform) = &self.platform {
            sources.push((Source::Questions, platform.questions(), PollFlags::IN));
        }
        sources.extend(self.companions.descriptors().map(|fd| (Source::Companions, fd, PollFlags::IN)));
        if !state.sidecar_gone {
            sources.push((Source::Sidecar, self.sidecar.gone(), PollFlags::IN));
        }
        let input = std::io::stdin();
        if let Some(relay) = &state.relay {
            let mut wish = if relay.has_output() { PollFlags::empty() } else { PollFlags::IN };
            wish.set(PollFlags::OUT, relay.has_input());
            // A terminal that is hung up would always be ready.
            if relay.shut_until().is_none() && !wish.is_empty() {
                sources.push((Source::Output, relay.master(), wish));
            }
            if relay.has_output() {
                sources.push((Source::Room, relay.out(), PollFlags::OUT));
            }
            if relay.wants_input() {
                sources.push((Source::Input, input.as_fd(), PollFlags::IN));
            }
        }
        let shut = state.relay.as_ref().and_then(Relay::shut_until);
        let until =
            [state.kill_at(), shut, next_check].into_iter().flatten().fold(self.clock.at(), Instant::min);
        let left = Self::patience(state, until.saturating_duration_since(Instant::now()));
        wait_for(&sources, Some(left)).map_err(plumbing("wait for the run"))
    }

    fn take_event(&mut self, state: &mut State) -> Result<Option<CommandEnd>, Error> {
        let event = self.sandbox.next_event().map_err(plumbing("hear from the sandbox"))?;
        match event {
            Some(Event::Terminal(master)) => {
                state.relay = Some(Relay::tie(master).map_err(plumbing("use the terminal"))?);
                Ok(None)
            }
            Some(Event::Started { notices, .. }) => {
                state.started = true;
                if let Clock::Runs(until) = &mut self.clock {
                    *until = Instant::now() + self.timeout;
                }
                for notice in &notices {
                    (self.report)(Report::Note(notice));
                }
                // Whether a cover was lost can only be seen from now on.
                state.protection.check(self.sandbox)?;
                Ok(None)
            }
            Some(Event::SetUp { number, end, took }) => {
                let notice = self.set_up.note(number, end, took);
                if let Some(notice) = notice.filter(|_| !state.ends_by(end)) {
                    (self.report)(Report::Note(&notice));
                }
                Ok(None)
            }
            Some(Event::Failed(failure)) => Err(sandbox::Error::Step(failure).into()),
            Some(Event::NotExecuted { errno }) => Ok(Some(CommandEnd::NotExecuted(errno))),
            Some(Event::Used(used)) => {
                state.used = Some(used);
                Ok(None)
            }
            Some(Event::Ended(_)) if self.clock.is_over() => Ok(Some(CommandEnd::TimedOut)),
            Some(Event::Ended(ended)) => Ok(Some(CommandEnd::Ended(ended))),
            None if self.clock.is_over() => Ok(Some(CommandEnd::TimedOut)),
            None => match state.asked {
                // Whatever ended a command that had answered Ctrl-C by going on, it was not that.
                Some(asked) if asked.kill_at.is_some() || !state.started => {
                    Ok(Some(CommandEnd::Killed(asked.signal)))
                }
                _ => Err(self.lost(state)),
            },
        }
    }

    fn tell_held(&mut self, state: &mut State) {
        state.held.drain(..).for_each(|notice| (self.report)(Report::Notice(&notice)));
    }

    /// Takes the messages of the sidecar.
    fn take_notices(&mut self, state: &mut State) {
        while let Ok(Some(message)) = sidecar_messages::next(self.notices) {
            match message {
                SidecarMessage::Notice(notice) if state.is_full_screen() => state.hold(notice),
                SidecarMessage::Notice(notice) => {
                    self.streams.settle();
                    (self.report)(Report::Notice(&notice));
                }
                SidecarMessage::Summary(found) => state.summary = Some(found),
                SidecarMessage::Panicked(what) => (self.report)(Report::Note(&panicked(&what))),
                SidecarMessage::Failed { why, remedy } => {
                    state.failed = Some(Error::SidecarFailed { why, remedy });
                }
                SidecarMessage::Authority(pem) => self.sandbox.hand_over(pem.as_bytes()),
                SidecarMessage::NameFilesChanged => name_files::send(self.notices),
                SidecarMessage::NoMoreDenials => {} // a run shows fewer
            }
        }
    }

    /// Takes the signals that came.
    fn take_signals(&mut self, state: &mut State) -> Result<(), Error> {
        while let Some(signal) = self.signals.next().map_err(plumbing("read signals"))? {
            match signal {
                SIGWINCH => {
                    if let Some(relay) = &state.relay {
                        relay.follow_size();
                    }
                }
                // The keys of its own terminal go to the command.
                SIGTSTP if state.relay.is_some() => {}
                SIGTSTP => self.suspend(state),
                SIGCONT if state.suspended.is_some() => {} // see `go_on`
                SIGCONT => {
                    if let Some(relay) = &state.relay {
                        relay.take_back();
                    }
                    self.sandbox.signal(SIGCONT);
                }
                SIGINT | SIGTERM | SIGHUP | SIGQUIT => self.ask_to_end(state, signal),
                other => self.sandbox.signal(other),
            }
        }
        Ok(())
    }

    /// Asks the command to end, or kills it.
    fn ask_to_end(&self, state: &mut State, signal: i32) {
        let now = Instant::now();
        if state.asked.is_some_and(|asked| asked.is_repeated_by(signal, now)) {
            return;
        }
        if state.asked.is_some_and(|asked| asked.is_killed_by(signal)) {
            self.sandbox.kill();
            state.asked = Some(EndRequest { signal, asked_at: now, kill_at: Some(now + GRACE) });
        } else {
            self.sandbox.signal(if signal == SIGTERM { self.stop } else { signal });
            state.asked = Some(EndRequest::next(state.asked, signal, now));
        }
    }

    fn mind_the_time(&mut self, state: &mut State) {
        let now = Instant::now();
        match self.clock {
            Clock::Runs(until) if now >= until && state.suspended.is_none() => {
                self.ask_to_end(state, SIGTERM);
                self.clock = Clock::TimedOut(now + GRACE);
            }
            Clock::TimedOut(until) if now >= until => self.kill(state, now),
            _ if state.kill_at().is_some_and(|at| now >= at) => self.kill(state, now),
            Clock::Runs(_) | Clock::TimedOut(_) => {}
        }
    }

    fn kill(&mut self, state: &mut State, now: Instant) {
        self.sandbox.kill();
        // The next event is init's end.
        *self.clock.at_mut() = now + GRACE;
        state.asked.iter_mut().for_each(|asked| asked.kill_at = Some(now + GRACE));
    }
}
