//! What a run survives, and its user should know.

use std::fmt;

use weightloom_errors::Hint as _;

use crate::config::ConfigWarning;

/// Something that went wrong without ending the run.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Warning {
    /// A checkpoint is damaged; the run resumes from an older one, and keeps the
    /// damaged one under another name.
    DamagedCheckpoint { path: String, reason: String, kept_as: String },
    /// A folder with the name of a checkpoint is empty. It is removed.
    EmptyCheckpoint { path: String },
    /// A metric sink cannot be written. The run continues without its records.
    Metrics { reason: String },
    /// A step ran out of memory. The run continues with smaller micro-batches.
    OutOfMemory { step: u64, rows: usize, smaller: usize, reason: String },
    /// The weights are not updated in a bad step.
    BadStep { reason: String, back_to: Option<u64> },
    /// A value of the config is surely not what is wanted.
    Config(ConfigWarning),
    /// The checkpoints that the run keeps may not fit on the disk.
    FreeSpace { path: String, free: u64, checkpoint: u64, kept: u64 },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DamagedCheckpoint { path, reason, kept_as } => {
                write!(f, "cannot resume from `{path}`: {reason}; kept as `{kept_as}`")
            }
            Self::EmptyCheckpoint { path } => write!(f, "removed `{path}`: the folder was empty"),
            Self::Metrics { reason } => {
                write!(f, "metrics are incomplete: {reason}; the run continues")
            }
            Self::OutOfMemory { step, rows, smaller, reason } => write!(
                f,
                "cannot run step {step} in micro-batches of {rows} rows: {reason}; the run continues with \
                 `train.micro_batch_size: {smaller}`"
            ),
            Self::BadStep { reason, back_to: None } => write!(f, "skipped an update: {reason}"),
            Self::BadStep { reason, back_to: Some(step) } => {
                write!(f, "returned to step {step}: {reason}")
            }
            Self::Config(warning) => {
                let fix = warning.hint().map_or_else(String::new, |hint| format!("; {hint}"));
                write!(f, "{warning}{fix}")
            }
            Self::FreeSpace { path, free, checkpoint, kept } => write!(
                f,
                "`{path}` has {} free, but the run keeps up to {kept} checkpoints of {}",
                mebibytes(*free),
                mebibytes(*checkpoint)
            ),
        }
    }
}

/// A size for messages.
pub(crate) fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
