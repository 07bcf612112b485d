//! Files of an object store, each written from its first byte to its last.

use std::collections::VecDeque;

use super::open_target::ObjectFiles;
use crate::error::CheckpointError;
use crate::file_layout::PlannedFile;
use crate::plan::PlanError;
use crate::storage::Upload;

/// Writes a rank's files in order. Bytes that are known beforehand (headers,
/// bytes between the data) are filled in on the way.
pub(crate) struct SequentialWriter<'a> {
    files: ObjectFiles<'a>,
    /// Numbers of the files that are still to be written, ascending.
    remaining: VecDeque<usize>,
    current: Option<(usize, FileUpload<'a>)>,
}

impl<'a> SequentialWriter<'a> {
    pub(super) fn new(files: ObjectFiles<'a>, numbers: impl IntoIterator<Item = usize>) -> Self {
        Self { files, remaining: numbers.into_iter().collect(), current: None }
    }

    /// Writes bytes at an offset of a file. Calls come in the order of the
    /// files and their offsets.
    pub(crate) fn write(&mut self, file: usize, offset: u64, bytes: &[u8]) -> Result<(), CheckpointError> {
        loop {
            match &mut self.current {
                Some((current, upload)) if *current == file => return upload.write(offset, bytes),
                None if self.remaining.is_empty() => {
                    let file = self.files.name(file).to_owned();
                    return Err(PlanError::Overlap { file, offset }.into());
                }
                _ => self.next_file()?,
            }
        }
    }

    /// Finishes the current file and all that follow it.
    pub(crate) fn finish(mut self) -> Result<(), CheckpointError> {
        while self.current.is_some() || !self.remaining.is_empty() {
            self.next_file()?;
        }
        Ok(())
    }

    /// Finishes the current file and begins the next one.
    fn next_file(&mut self) -> Result<(), CheckpointError> {
        if let Some((_, upload)) = self.current.take() {
            upload.finish()?;
        }
        self.current = match self.remaining.pop_front() {
            Some(number) => Some((number, self.files.begin_upload(number)?)),
            None => None,
        };
        Ok(())
    }
}

/// One file on its way to the store.
pub(super) struct FileUpload<'a> {
    file: &'a PlannedFile,
    upload: Box<dyn Upload>,
    /// Bytes known beforehand, ascending.
    frame: VecDeque<(u64, Vec<u8>)>,
    position: u64,
}

impl<'a> FileUpload<'a> {
    pub(super) fn new(
        file: &'a PlannedFile,
        upload: Box<dyn Upload>,
        mut frame: Vec<(u64, Vec<u8>)>,
    ) -> Self {
        frame.sort_by_key(|(offset, _)| *offset);
        Self { file, upload, frame: frame.into(), position: 0 }
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), CheckpointError> {
        while let Some((start, known)) = self.frame.pop_front_if(|(start, _)| *start < offset) {
            self.write_at(start, &known)?;
        }
        self.write_at(offset, bytes)
    }

    fn finish(mut self) -> Result<(), CheckpointError> {
        while let Some((start, known)) = self.frame.pop_front() {
            self.write_at(start, &known)?;
        }
        self.write_at(self.file.length, &[])?;
        Ok(self.upload.finish()?)
    }

    /// Writes bytes, with zeros up to their offset.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), CheckpointError> {
        const ZEROS: [u8; 4096] = [0; 4096];
        if offset < self.position {
            return Err(PlanError::Overlap { file: self.file.name.clone(), offset }.into());
        }
        while self.position < offset {
            let gap = (offset - self.position).min(ZEROS.len() as u64);
            self.upload.write(&ZEROS[..gap as usize])?;
            self.position += gap;
        }
        self.upload.write(bytes)?;
        self.position += bytes.len() as u64;
        Ok(())
    }
}
