//! `lockgate image`

use std::path::PathBuf;

use clap::Subcommand;

/// `lockgate image`
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Image {
    /// Get an image from a registry
    #[command(after_help = "\
Examples:
  lockgate image pull registry.example.com/team/app:1.2
  lockgate image pull 127.0.0.1:5000/app   on this machine, without TLS
  lockgate creds set my-registry --field username
  lockgate creds set my-registry --field password
  lockgate image pull --credential my-registry registry.example.com/team/app")]
    Pull {
        /// REGISTRY/REPOSITORY[:TAG][@DIGEST]
        image: String,
        /// The credential that the registry wants to see, with the fields `username` and `password`
        #[arg(long, value_name = "NAME")]
        credential: Option<String>,
        /// Speak to the registry without TLS
        #[arg(long)]
        plain_http: bool,
        /// How large a layer may be at most, as an archive that is not compressed
        #[arg(long, value_name = "SIZE", default_value = "16GiB")]
        max_size: String,
    },
    /// Take an image in: a `docker save` archive, an OCI layout, or a root file system as an archive or a directory
    Import {
        /// The file or directory
        source: PathBuf,
        /// What it is called here [default: what it calls itself]
        #[arg(long)]
        name: Option<String>,
        /// How a root file system is run, which has no configuration: the `config` object of an image's, as JSON
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// How large a layer may be at most, as an archive that is not compressed
        #[arg(long, value_name = "SIZE", default_value = "16GiB")]
        max_size: String,
    },
    /// List the images that are here
    Ls {
        /// JSON Lines
        #[arg(long)]
        json: bool,
        /// Only identifiers
        #[arg(short, long, conflicts_with = "json")]
        quiet: bool,
    },
    /// Remove images by name, and what nothing else needs of them
    Rm {
        /// The images
        #[arg(required = true)]
        images: Vec<String>,
    },
    /// Remove images without a name, and what interrupted imports left
    Prune,
}
