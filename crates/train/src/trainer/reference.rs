//! Log-probabilities of completions under the weights that a run starts from.
//!
//! Training changes these weights, so the log-probabilities of all documents are
//! computed before the first step, and kept in the run folder. A run that is stopped
//! meanwhile continues where it was, and a resumed run reads them. The first line of
//! the file says what data, weights and settings they belong to.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use weightloom_checkpoint::{ElementSum, Fingerprint};
use weightloom_dtensor::{DTensor, DTensorError};
use weightloom_errors::FileError;
use weightloom_gang::GangExt;
use weightloom_layout::ReduceOp;
use weightloom_nn::NnError;

use super::batch::micro_batches;
use crate::callback::{Callback, for_each};
use crate::config::Config;
use crate::data::{Loader, Supervision};
use crate::engine::Engine;
use crate::error::TrainError;
use crate::loss::LossError;
use crate::parallel_dims::ParallelDims;

/// The log-probabilities of both sequences of each document.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ReferenceLogprobs {
    of_documents: Vec<[f32; 2]>,
}

impl ReferenceLogprobs {
    pub(super) fn new(of_documents: Vec<[f32; 2]>) -> Self {
        Self { of_documents }
    }

    /// Those of a document, by its number in the data.
    pub(super) fn of(&self, document: u64) -> [f32; 2] {
        self.of_documents.get(document as usize).copied().unwrap_or([0.0; 2])
    }
}

/// What log-probabilities belong to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    /// Digest of the files and of the settings of rows.
    data: String,
    /// Fingerprint of the initial weights.
    weights: String,
    /// Dtype of the computation.
    precision: String,
}

/// Log-probabilities of consecutive documents.
#[derive(Serialize, Deserialize)]
struct Part {
    first: usize,
    logps: Vec<[f32; 2]>,
}

/// The computation of log-probabilities before training.
pub(super) struct ReferencePass<'a> {
    pub(super) engine: &'a Engine,
    pub(super) config: &'a Config,
    pub(super) dims: &'a ParallelDims,
    /// The checkpoint from which the run is resumed: its weights are other ones.
    pub(super) resumed: Option<&'a Path>,
}

impl ReferencePass<'_> {
    /// Reads or computes the log-probabilities of the first documents. Called by every
    /// rank.
    pub(super) fn run(
        &self,
        name: &str,
        loader: &mut Loader,
        documents: usize,
        callbacks: &mut [Box<dyn Callback + '_>],
    ) -> Result<ReferenceLogprobs, TrainError> {
        let root = &self.engine.gangs.root;
        let precision = format!("{:?}", self.config.train.precision);
        let header = Header { data: loader.dataset_digest(), weights: self.fingerprint()?, precision };
        let file = self.folder().join(format!("{name}.jsonl"));
        let known = match root.rank() {
            0 => self.known(&file, name, &header, documents).map_err(|error| {
                let text = error.to_string();
                (error, text)
            }),
            _ => Ok(Vec::new()),
        };
        let shared = known.as_ref().map_err(|(_, text)| text.clone());
        let shared: Result<Vec<[f32; 2]>, String> =
            root.broadcast_object((root.rank() == 0).then_some(&shared.cloned()), 0)?;
        known.map_err(|(error, _)| error)?;
        let mut of_documents = shared.map_err(|reason| TrainError::Reference { reason })?;
        let mut out = match root.rank() {
            0 if of_documents.len() < documents => Some(Parts::open(&file, &header, &of_documents)?),
            _ => None,
        };
        while of_documents.len() < documents {
            let first = of_documents.len();
            let part = self.part(loader, first, documents)?;
            if let Some(out) = &mut out {
                out.write(&Part { first, logps: part.clone() })?;
            }
            of_documents.extend(part);
            let (done, total) = (of_documents.len() as u64, documents as u64);
            for_each(callbacks, |callback| callback.on_reference_logprobs(done, total))?;
        }
        if let Some(out) = out {
            out.finish()?;
        }
        Ok(ReferenceLogprobs::new(of_documents))
    }

    /// The folder of the files.
    fn folder(&self) -> PathBuf {
        Path::new(&self.config.train.checkpoint.output_dir).join("reference")
    }

    /// What is known of the documents. A run that starts anew forgets those of other
    /// weights or data.
    fn known(
        &self,
        file: &Path,
        name: &str,
        header: &Header,
        documents: usize,
    ) -> Result<Vec<[f32; 2]>, TrainError> {
        let Some(checkpoint) = self.resumed else {
            let known = read(file)?.filter(|(found, _)| found == header);
            return Ok(known.map_or_else(Vec::new, |(_, known)| known.into_iter().take(documents).collect()));
        };
        // A checkpoint of another run has them in that run's folder.
        let of_other =
            checkpoint.ancestors().nth(2).map(|run| run.join("reference").join(format!("{name}.jsonl")));
        for found_in in std::iter::once(file.to_owned()).chain(of_other) {
            let Some((found, mut known)) = read(&found_in)? else { continue };
            if found.data != header.data || found.precision != header.precision {
                return Err(LossError::OtherReference { file: found_in.display().to_string() }.into());
            }
            if known.len() >= documents {
                if found_in != file {
                    // For processes that resume from a checkpoint of this run.
                    let folder = self.folder();
                    std::fs::create_dir_all(&folder)
                        .map_err(FileError::while_trying_to("create", &folder))?;
                    std::fs::copy(&found_in, file).map_err(FileError::while_trying_to("write", file))?;
                }
                known.truncate(documents);
                return Ok(known);
            }
        }
        Err(LossError::NoReference { file: file.display().to_string() }.into())
    }

    /// The log-probabilities of the documents that all ranks pass through the model
    /// next.
    fn part(&self, loader: &mut Loader, first: usize, documents: usize) -> Result<Vec<[f32; 2]>, TrainError> {
        let dp = &self.engine.gangs.dp;
        let rows = self.dims.micro_batch_size;
        let start = first + dp.rank() * rows;
        let of_rank: Result<Vec<_>, _> =
            (start..start + rows).map(|document| loader.document_row(document.min(documents - 1))).collect();
        let mut found: Vec<[f32; 2]> = Vec::with_capacity(rows);
        for micro in micro_batches(&of_rank?, rows, self.engine, None)? {
            let of_rows = self.engine.initial_logprobs(&micro)?;
            let others = micro.preferences.as_ref().and_then(|preferences| preferences.mismatched.as_ref());
            match (self.engine.supervision(), others) {
                (Supervision::Labels, Some(others)) => {
                    let of_others = self.engine.initial_logprobs(others)?;
                    found.extend(of_rows.into_iter().zip(of_others).map(|(one, other)| [one, other]));
                }
                _ => found.extend(of_rows.chunks_exact(2).map(|pair| [pair[0], pair[1]])),
            }
        }
        let all: Vec<Vec<[f32; 2]>> = dp.all_gather_objects(&found)?;
        let left = documents - first;
        Ok(all.into_iter().flatten().take(left).collect())
    }

    /// The fingerprint of the weights, wherever they are. Called by every rank.
    fn fingerprint(&self) -> Result<String, TrainError> {
        let stages = self.engine.stages();
        let parameters = || stages.iter().flat_map(|stage| stage.model.parameters());
        let mut sums = Vec::new();
        for (_, value) in parameters() {
            let ElementSum { low, high } = own_sum(value)?;
            sums.extend([low, high]);
        }
        self.engine.gangs.root.all_reduce(&mut sums, ReduceOp::Sum)?;
        let tensors = parameters().zip(sums.chunks_exact(2)).map(|((name, value), sum)| {
            let sum = ElementSum { low: sum[0], high: sum[1] };
            (name.as_str(), Fingerprint::of_tensor(value.dtype(), value.shape(), sum))
        });
        Ok(Fingerprint::of_whole(tensors).to_string())
    }
}

/// The sum over the elements of a shard, on the first of the ranks that hold it.
fn own_sum(value: &DTensor) -> Result<ElementSum, TrainError> {
    let (layout, rank) = (value.layout(), value.dist().rank());
    let mesh = layout.mesh();
    for axis in (0..mesh.ndim()).filter(|&axis| layout.placements()[axis].shard_dim().is_none()) {
        if mesh.peers(rank, axis).map_err(DTensorError::from)?.first() != Some(&rank) {
            return Ok(ElementSum::default());
        }
    }
    let local = value.to_local();
    let sum = local.read_host(|bytes| {
        ElementSum::of_region(value.dtype(), value.shape(), value.spec().region(), bytes)
    })?;
    Ok(sum.map_err(|error| {
        NnError::from(weightloom_tensor::TensorError::from_function("fingerprint", error))
    })?)
}

/// A file to which log-probabilities are added.
struct Parts {
    path: PathBuf,
    file: File,
}

impl Parts {
    /// Opens a file with what is known of the documents.
    fn open(path: &Path, header: &Header, known: &[[f32; 2]]) -> Result<Self, TrainError> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(FileError::while_trying_to("create", folder))?;
        }
        // Written anew, because the last line may be incomplete.
        let opened = OpenOptions::new().create(true).write(true).truncate(true).open(path);
        let file = opened.map_err(FileError::while_trying_to("create", path))?;
        let mut parts = Self { path: path.to_owned(), file };
        parts.line(header)?;
        if !known.is_empty() {
            parts.write(&Part { first: 0, logps: known.to_vec() })?;
        }
        Ok(parts)
    }

    fn write(&mut self, part: &Part) -> Result<(), TrainError> {
        self.line(part)
    }

    fn line(&mut self, value: &impl Serialize) -> Result<(), TrainError> {
        let failed = FileError::while_trying_to("write", &self.path);
        let line = serde_json::to_string(value)
            .map_err(|error| TrainError::Reference { reason: error.to_string() })?;
        Ok(writeln!(self.file, "{line}").map_err(failed)?)
    }

    fn finish(self) -> Result<(), TrainError> {
        Ok(self.file.sync_all().map_err(FileError::while_trying_to("write", &self.path))?)
    }
}

/// What a file has.
type Known = (Header, Vec<[f32; 2]>);

/// Reads a file up to the first line that is not complete; `None` if there is no file
/// with a header.
fn read(path: &Path) -> Result<Option<Known>, TrainError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(FileError::new("read", path, &error).into()),
    };
    let mut lines = BufReader::new(file).lines().map_while(Result::ok);
    let Some(header) = lines.next().and_then(|line| serde_json::from_str(&line).ok()) else {
        return Ok(None);
    };
    let mut known = Vec::new();
    for part in lines.map_while(|line| serde_json::from_str::<Part>(&line).ok()) {
        if part.first != known.len() {
            break;
        }
        known.extend(part.logps);
    }
    Ok(Some((header, known)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(weights: &str) -> Header {
        Header { data: "d".to_owned(), weights: weights.to_owned(), precision: "F32".to_owned() }
    }

    #[test]
    fn a_file_is_read_up_to_its_last_complete_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("reference/train.jsonl");
        assert_eq!(read(&path).unwrap(), None);
        let numbers = [[-1.5, -0.1], [f32::MIN_POSITIVE, -123.456_78]];
        let mut parts = Parts::open(&path, &header("w"), &numbers[..1]).unwrap();
        parts.write(&Part { first: 1, logps: vec![numbers[1]] }).unwrap();
        parts.finish().unwrap();
        assert_eq!(read(&path).unwrap(), Some((header("w"), numbers.to_vec())));
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 3]).unwrap();
        assert_eq!(read(&path).unwrap(), Some((header("w"), numbers[..1].to_vec())));
        std::fs::write(&path, "{").unwrap();
        assert_eq!(read(&path).unwrap(), None);
    }
}
