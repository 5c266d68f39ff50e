//! The serving process: opens the gate, confines itself, and says that it is ready, or why it is not.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use credential::Secret;
use egress::{
    CredentialConfig, Files, GateError, GateOptions, Listeners, NameRange, PlatformAddress, PlatformPlace,
    RunAuthority, RunToken, Stop,
};
use policy::Wiring;
use rustix::net::{SendFlags, Shutdown};
use sandbox::KeepsOpen;

use super::outlet::{self, Outlet};
use super::{AuditFile, READY, Standalone, unwritten};
use crate::error::{Error, plumbing};
use crate::gate::{base_options, open_gate, signed_audit};
use crate::name_files;
use crate::sidecar::SidecarCredentials;

/// What the serving process inherits.
pub(super) struct Inside {
    pub(super) sidecar: Standalone,
    pub(super) listeners: Listeners,
    pub(super) credentials: SidecarCredentials,
    pub(super) route: PlatformRoute,
    pub(super) outlets: Outlets,
    pub(super) bundle: Option<String>,
    /// The socket over which it reports its state, and whose end is its own.
    pub(super) link: OwnedFd,
    /// The socket on which it tells denials.
    pub(super) notices: OwnedFd,
}

/// Where the platform is that knows the credentials.
pub(super) enum PlatformRoute {
    /// It is the process that started this one.
    Here,
    /// It is elsewhere; the environment names it, and with it the run.
    Named(PlatformAddress, RunToken),
    /// It is elsewhere; whoever has this secret names it and the run at `/configure`, once. S0.41
    Awaited(Secret),
}

/// The files it writes before it serves. It holds none of them after that.
#[derive(Default)]
pub(super) struct Outlets {
    /// The file for the placeholders, and its content.
    pub(super) environment: Option<(Outlet, String)>,
    /// The file for the certificate of its authority.
    pub(super) authority: Option<Outlet>,
}

impl KeepsOpen for Inside {
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let Listeners { transparent, forward, gateway, gateway_socket, dns_udp, dns_tcp, .. } =
            &self.listeners;
        let mut all: Vec<BorrowedFd<'_>> = [transparent, forward, gateway, gateway_socket, dns_udp, dns_tcp]
            .into_iter()
            .flatten()
            .map(AsFd::as_fd)
            .collect();
        all.extend([self.link.as_fd(), self.notices.as_fd()]);
        let Outlets { environment, authority } = &self.outlets;
        let outlets = environment.iter().map(|(outlet, _)| outlet).chain(authority);
        all.extend(outlets.filter_map(Outlet::descriptor));
        all.extend(self.credentials.descriptors());
        all.extend(self.sidecar.audit.as_ref().map(|audit| audit.file.as_fd()));
        all
    }
}

impl Inside {
    /// Serves, and returns the exit status.
    pub(super) fn live(mut self) -> i32 {
        egress::tell_panics(self.notices.as_fd());
        let outlets = std::mem::take(&mut self.outlets);
        match self.serve(outlets) {
            Ok(()) => 0,
            Err(error) => {
                egress::send_failure(self.link.as_fd(), &error.to_string(), error.remedy().as_deref());
                1
            }
        }
    }

    fn serve(&self, outlets: Outlets) -> Result<(), Error> {
        let Standalone { policy, spending, name_addresses, run, audit, .. } = &self.sidecar;
        let opener = name_files::opener(self.notices.as_fd()).map_err(plumbing("open the notices"))?;
        let files = Files::open(self.bundle.as_deref())?.reopened_by(opener);
        let opened = audit.as_ref().map(|audit| signed_audit(&audit.file, &audit.key)).transpose()?;
        let credential_config = self.credential_config().map_err(plumbing("reach the platform"))?;
        let listeners = self.listeners.try_clone().map_err(plumbing("use the sockets"))?;
        let own = self.own_addresses().map_err(plumbing("tell where a socket is bound"))?;
        let notices = self.notices.try_clone().map_err(plumbing("open the notices"))?;
        let stop = self.stop()?;
        let authority = outlets.write()?;
        sandbox::confine_sidecar(None).map_err(plumbing("shut the sidecar in"))?;
        let options = GateOptions {
            audit: opened,
            names: NameRange::of(*name_addresses, Wiring::Redirect),
            authority,
            credential_config,
            listeners: own,
            // A gateway on a Unix socket alone is for those whom the mode of the socket admits.
            gateway: self.listeners.gateway.is_some(),
            ..base_options(policy, spending, run, files, notices)
        };
        let gate = open_gate(options, |source| match audit {
            Some(AuditFile { path, .. }) => unwritten(path, source),
            None => GateError::Audit(source).into(),
        })?;
        let ready = || {
            rustix::net::send(&self.link, READY, SendFlags::NOSIGNAL)?;
            Ok(())
        };
        egress::serve(gate, listeners, stop, ready, sandbox::trim_heap)?;
        Ok(())
    }

    /// Returns the addresses at which this sidecar listens, to which no rule may lead.
    fn own_addresses(&self) -> io::Result<Vec<SocketAddr>> {
        let Listeners { transparent, forward, gateway, dns_tcp, .. } = &self.listeners;
        [transparent, forward, gateway, dns_tcp].into_iter().flatten().map(egress::bound).collect()
    }

    /// Returns where credentials come from: a platform elsewhere, where one is known, or the process that started this one.
    fn credential_config(&self) -> io::Result<CredentialConfig> {
        let mut config = self.credentials.credential_config()?;
        match &self.route {
            PlatformRoute::Here => {}
            PlatformRoute::Named(address, token) => {
                config.platform = Some(PlatformPlace::Address(*address, token.clone()));
            }
            PlatformRoute::Awaited(secret) => config.configure_once = Some(secret.clone()),
        }
        Ok(config)
    }

    /// Returns what stops the serving: the end of the link at once, and a message on it after every listener has been shut down.
    fn stop(&self) -> Result<Stop, Error> {
        // Shut down rather than closed: the copies in this process stay open until it ends.
        let shut = self.listeners.try_clone().map_err(plumbing("use the sockets"))?;
        let drain = move || {
            let Listeners { transparent, forward, gateway, gateway_socket, dns_tcp, .. } = &shut;
            for listener in [transparent, forward, gateway, gateway_socket, dns_tcp].into_iter().flatten() {
                let _ = rustix::net::shutdown(listener, Shutdown::Both);
            }
        };
        let link = self.link.try_clone().map_err(plumbing("watch for the end"))?;
        Ok(Stop::after_what_is_under_way(link, drain))
    }
}

impl Outlets {
    /// Makes the authority, and writes the files that others are to be given.
    fn write(self) -> Result<Option<RunAuthority>, Error> {
        let Outlets { environment, authority: certificate } = &self;
        let authority = certificate.as_ref().map(|_| RunAuthority::make()).transpose();
        let authority = authority.map_err(GateError::Authority)?;
        let environment = environment.iter().map(|(outlet, lines)| (outlet, lines.as_str()));
        let certificate = certificate
            .iter()
            .zip(&authority)
            .map(|(outlet, authority)| (outlet, authority.certificate_pem()));
        outlet::write_all(&environment.chain(certificate).collect::<Vec<_>>())?;
        Ok(authority)
    }
}
