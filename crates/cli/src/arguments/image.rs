//! `lockgate image`

use std::path::PathBuf;

use clap::Subcommand;

/// `lockgate image`
#[derive(Debug, Subcommand)]
pub(crate) enum Image {
    /// Take an image in: a `docker save` archive, an OCI layout, or a root file system as an archive or a directory
    Import {
        /// The file or directory
        source: PathBuf,
        /// What it is called here [default: what it calls itself]
        #[arg(long)]
        name: Option<String>,
        /// How a root file system is run: the `config` object of an image's configuration, as JSON
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// What a layer may hold at most, unpacked
        #[arg(long, value_name = "SIZE", default_value = "16GiB")]
        max_size: String,
    },
    /// List the images that are here
    Ls {
        /// JSON Lines
        #[arg(long)]
        json: bool,
        /// Only identifiers
        #[arg(short, long)]
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
