//! `extant image create`: the options of `qemu-img create` for `extant create`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use extant_image::{ReferencedFiles, open_path};
use extant_space::{ByteSize, CancelToken, Control, Error, ErrorKind, Result};

use crate::arguments::{OutputArgs, PaceArgs, parse_mode, parse_size};
use crate::create::{self, CreateArgs};
use crate::image_format::{ImageFormat, Mode};
use crate::image_options::HELP_WORD;
use crate::in_image::InImageArgs;
use crate::{complete, exit, image_options, print};

/// Make a new image, with the options of qemu-img create.
///
/// Nothing is preallocated without -o preallocation; extant create writes all of the space. Without
/// -f the format follows from the name. An existing file is replaced only with --force.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant image create -f qcow2 vm.qcow2 40G
  extant image create -f qcow2 -o preallocation=full,cluster_size=2M vm.qcow2 40G
  extant image create -f qcow2 -b base.raw -F raw top.qcow2     as large as base.raw
  extant image create -f qcow2 -o help

Exit status: see extant --help.")]
pub struct ImageCreateArgs {
    /// The new image
    #[arg(required_unless_present = "words")]
    pub path: Option<PathBuf>,

    /// The size of its disk [default: that of the backing file]
    #[arg(value_parser = parse_size)]
    pub size: Option<ByteSize>,

    /// Its format [default: by the end of its name, .qcow2 or raw]
    #[arg(long, short = 'f', value_name = "FORMAT")]
    pub format: Option<ImageFormat>,

    /// Its backing file, by the name that it will have in the image
    #[arg(long, short = 'b', value_name = "FILE", requires = "backing_format")]
    pub backing: Option<String>,

    /// The format of the backing file
    #[arg(long, short = 'F', value_name = "FORMAT", requires = "backing")]
    pub backing_format: Option<ImageFormat>,

    /// Do not open the backing file; SIZE is needed
    #[arg(long = "unsafe", short = 'u')]
    pub is_unsafe: bool,

    /// Options of the format, as for extant create; help lists them
    #[arg(short = 'o', long = "options", value_name = "NAME=VALUE,...")]
    #[arg(add = ArgValueCompleter::new(complete::words(image_options::NAMES)))]
    pub words: Vec<String>,

    /// Replace a file of this name, in one step, when the new one is complete
    #[arg(long)]
    pub force: bool,

    /// Permissions of the file [default: 0666 without the umask]
    #[arg(long, value_name = "OCTAL", value_parser = parse_mode)]
    pub mode: Option<u32>,

    #[command(flatten)]
    pub pace: PaceArgs,

    #[command(flatten)]
    pub inside: InImageArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

/// Creates it.
pub(super) fn run(args: &ImageCreateArgs, cancel: &CancelToken) -> ExitCode {
    if image_options::asks_for_help(&args.words) {
        return print::text(HELP_WORD);
    }
    let progress = &args.output.progress;
    let made = progress.show(|display| {
        let control = Control::new(cancel, display);
        create::create(&args.whole(cancel)?, display, control)
    });
    match made {
        Ok(said) => print::text(said),
        Err(error) => exit::report(&error, progress.error_style()),
    }
}

impl ImageCreateArgs {
    /// The same as options of `extant create`.
    fn whole(&self, cancel: &CancelToken) -> Result<CreateArgs> {
        let missing = |what: &str| Error::new(ErrorKind::InvalidArgument).detail(what);
        let path = self
            .path
            .clone()
            .ok_or_else(|| missing("the name of the image is missing"))?;
        let mut words = self.words.clone();
        if let (Some(name), Some(format)) = (&self.backing, self.backing_format) {
            let format = extant_image::Format::from(format);
            // A comma in a value is written twice.
            let name = name.replace(',', ",,");
            words.push(format!("backing_file={name},backing_fmt={format}"));
        }
        let whole = CreateArgs {
            path,
            size: self.size.unwrap_or(ByteSize(0)),
            format: self.format,
            preallocation: None,
            default_preallocation: Some(Mode::Off),
            is_backing_unchecked: self.is_unsafe,
            words,
            allocation: None,
            pace: self.pace.clone(),
            nocow: false,
            through: false,
            keep_partial: false,
            force: self.force,
            mode: self.mode,
            inside: self.inside.clone(),
            output: self.output.clone(),
        };
        if self.size.is_some() {
            return Ok(whole);
        }
        let size = match whole.image()?.qcow2.backing {
            Some(backing) if !self.is_unsafe && self.inside.image.is_none() => {
                let directory = whole.path.parent().unwrap_or(std::path::Path::new(""));
                let place = directory.join(&backing.name);
                let format = backing
                    .format
                    .parse()
                    .map_err(|error: Error| error.at(&place))?;
                let layer = open_path(&place, Some(format), ReferencedFiles::Ignore)?;
                ByteSize(layer.with_cancel(cancel).virtual_bytes())
            }
            _ => return Err(missing("the size of the image is missing")),
        };
        Ok(CreateArgs { size, ..whole })
    }
}
