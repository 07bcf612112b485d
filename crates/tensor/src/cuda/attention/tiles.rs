//! Tiles of queries and keys, on which tensor cores compute attention of halves.

use weightloom_cuda::{Arg, Grid};
use weightloom_layout::DType;

use super::super::{Cuda, address};
use super::{OP, Sizes, strides};
use crate::error::Result;
use crate::kernels::attention::{Geometry, KeyLimit};
use crate::kernels::copy::CopyKernels as _;
use crate::tensor::Tensor;

/// Keys of a block, as in the kernels.
const BLOCK_KEYS: usize = 64;

/// Keys of a segment, after which a tile keeps its sums in shared memory.
const SEGMENT: usize = 1024;

/// Elements between the rows of a tile, beyond their width.
const PADDING: usize = 8;

/// Elements of a half, in bytes.
const HALF: usize = 2;

/// The most queries of a sequence for which a warp takes them all.
const FEW_QUERIES: usize = 16;

/// Positions must fit in 32 bits with room for sums of them.
const MOST_POSITIONS: usize = 1 << 29;

/// The most tiles of all heads: blocks of a launch.
const MOST_TILES: usize = (1 << 31) - 1;

/// How heads of some widths are divided, as in the kernels.
#[derive(Clone, Copy, Debug)]
pub(super) struct TileShape {
    /// The widest head.
    width: usize,
    /// Rows of a tile: queries, or keys for their gradients.
    rows: usize,
    /// Threads of a tile.
    threads: usize,
    /// Queries of a block, for the gradients of keys.
    queries: usize,
}

const SHAPES: [TileShape; 4] = [
    TileShape { width: 64, rows: 128, threads: 128, queries: 64 },
    TileShape { width: 96, rows: 64, threads: 128, queries: 32 },
    TileShape { width: 128, rows: 64, threads: 128, queries: 32 },
    TileShape { width: 256, rows: 32, threads: 64, queries: 16 },
];

impl TileShape {
    /// Bytes of a tile or block with some rows.
    fn tile(self, rows: usize) -> usize {
        rows * (self.width + PADDING) * HALF
    }

    /// Shared memory of a tile of queries.
    fn forward(self, keys: usize) -> usize {
        let rows_of_warps = self.rows / (16 * self.threads / 32);
        let kept = if keys > SEGMENT { rows_of_warps * (4 + self.width / 2) * self.threads * 4 } else { 0 };
        self.tile(self.rows + 2 * BLOCK_KEYS) + kept
    }

    /// The same of the gradients of queries.
    fn query_gradient(self, ahead: Ahead) -> usize {
        self.tile(2 * self.rows + 2 * BLOCK_KEYS * ahead.blocks())
    }

    /// The same of the gradients of keys and values.
    fn key_gradient(self, ahead: Ahead) -> usize {
        self.tile(2 * self.rows + 2 * self.queries * ahead.blocks()) + 4 * self.queries * 4
    }

    /// Whether blocks can be loaded ahead with two tiles in a multiprocessor.
    fn ahead(self, shared: usize) -> Ahead {
        let most = self.query_gradient(Ahead::One).max(self.key_gradient(Ahead::One));
        if 2 * most <= shared { Ahead::One } else { Ahead::None }
    }

    /// The same of whatever asks for most.
    fn most(self) -> usize {
        let forward = self.forward(SEGMENT + 1);
        forward.max(self.query_gradient(Ahead::None)).max(self.key_gradient(Ahead::None))
    }

    fn grid(self, tiles: &Tiles, heads: usize, shared: usize) -> Grid {
        let blocks = (tiles.count * tiles.batch * heads) as u32;
        Grid::new([blocks, 1, 1], self.threads as u32).with_shared(shared as u32)
    }
}

/// Whether the next block is loaded while one is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ahead {
    None,
    One,
}

impl Ahead {
    /// Blocks in shared memory.
    fn blocks(self) -> usize {
        1 + usize::from(self == Self::One)
    }
}

/// Tiles of a launch.
struct Tiles {
    /// Of packed documents: their places. Else each sequence has the same.
    list: Option<Tensor>,
    /// Tiles, of a sequence if there is no list.
    count: usize,
    /// Sequences if there is no list, else 1.
    batch: usize,
}

impl Tiles {
    fn list(&self) -> Result<Arg<'static>> {
        self.list.as_ref().map_or(Ok(Arg::Null), |list| address(OP, list))
    }
}

/// What a kernel takes of the limit of keys: the padding mask, or none.
fn mask(limit: KeyLimit<'_>) -> Result<Arg<'static>> {
    match limit {
        KeyLimit::Padding(mask) => address(OP, mask),
        KeyLimit::None | KeyLimit::Documents(_) => Ok(Arg::Null),
    }
}

/// Batch, first position, end, and first row of each tile of packed documents. The
/// starts are checked.
fn tiles_of_documents(starts: &[i64], keys: usize, rows: usize) -> Vec<[u32; 4]> {
    let mut tiles = Vec::new();
    for (batch, starts) in starts.chunks_exact(keys.max(1)).enumerate() {
        for document in starts.chunk_by(|a, b| a == b) {
            let start = document[0] as usize;
            let end = start + document.len();
            tiles
                .extend((start..end).step_by(rows).map(|first| [batch, start, end, first].map(|x| x as u32)));
        }
    }
    tiles
}

impl Cuda {
    /// The tiles of some attention; `None` if other kernels compute it. That depends
    /// on dtype, width of heads and device alone, so that all queries of a model agree,
    /// as long as positions and blocks can be counted in 32 bits.
    pub(super) fn tile_shape(self, geometry: &Geometry, dtype: DType) -> Result<Option<TileShape>> {
        let Geometry { batch, heads, queries, keys, width, .. } = *geometry;
        let fits = matches!(dtype, DType::Bf16 | DType::F16)
            && width.is_multiple_of(8)
            && queries.max(keys) < MOST_POSITIONS
            // Tiles of documents have a row or more.
            && batch * heads * queries.max(keys) <= MOST_TILES;
        let Some(shape) = SHAPES.into_iter().find(|shape| fits && width <= shape.width) else {
            return Ok(None);
        };
        let shared = self.gpu()?.info().shared as usize;
        Ok((shape.most() <= shared).then_some(shape))
    }

    /// A tensor whose rows begin at multiples of 16 bytes.
    fn aligned(self, x: &Tensor) -> Result<Tensor> {
        let strides = strides(x);
        let sizes = x.shape();
        let in_steps = (0..3).all(|dim| sizes[dim] == 1 || strides[dim].is_multiple_of(8))
            && x.view().offset.is_multiple_of(8);
        if in_steps { Ok(x.detach()) } else { self.pack(OP, x) }
    }

    fn tiles(
        self,
        geometry: &Geometry,
        limit: KeyLimit<'_>,
        (length, rows): (usize, usize),
    ) -> Result<Tiles> {
        let KeyLimit::Documents(starts) = limit else {
            return Ok(Tiles { list: None, count: length.div_ceil(rows), batch: geometry.batch });
        };
        let tiles = tiles_of_documents(&starts.to_vec::<i64>()?, geometry.keys, rows);
        let list = self.upload(DType::U32, tiles.as_flattened())?;
        Ok(Tiles { list: Some(list), count: tiles.len(), batch: 1 })
    }

    pub(super) fn attend_tiles(
        self,
        (shape, name): (TileShape, &str),
        geometry: &Geometry,
        qkv: [&Tensor; 3],
        limit: KeyLimit<'_>,
        [out, logs]: [&Tensor; 2],
    ) -> Result<()> {
        let few = geometry.queries <= FEW_QUERIES && !matches!(limit, KeyLimit::Documents(_));
        // A warp gives the bits of a whole tile.
        let (prefix, shape) = match few {
            true => ("attend_row", TileShape { rows: FEW_QUERIES, threads: 32, ..shape }),
            false => ("attend_tiles", shape),
        };
        let [q, k, v] = qkv.map(|x| self.aligned(x));
        let (q, k, v) = (q?, k?, v?);
        let sizes = Sizes::new(geometry, [&q, &k, &v], out, out)?;
        let tiles = self.tiles(geometry, limit, (geometry.queries, shape.rows))?;
        let args = [
            address(OP, out)?,
            address(OP, logs)?,
            address(OP, &q)?,
            address(OP, &k)?,
            address(OP, &v)?,
            mask(limit)?,
            tiles.list()?,
            super::bytes(&sizes),
        ];
        let grid = shape.grid(&tiles, geometry.heads, shape.forward(geometry.keys));
        self.launch(&format!("{prefix}_{name}_{}", shape.width), grid, out.shape().volume(), &args)
    }

    pub(super) fn gradient_by_tiles(
        self,
        (shape, name): (TileShape, &str),
        geometry: &Geometry,
        qkv: [&Tensor; 3],
        limit: KeyLimit<'_>,
        [out, logs, gradient]: [&Tensor; 3],
        [of_q, of_k, of_v, dots]: [&Tensor; 4],
    ) -> Result<()> {
        let [q, k, v] = qkv.map(|x| self.aligned(x));
        let (q, k, v) = (q?, k?, v?);
        let (out, gradient) = (self.aligned(out)?, self.aligned(gradient)?);
        let ahead = shape.ahead(self.gpu()?.info().shared as usize);
        let sizes = Sizes::new(geometry, [&q, &k, &v], &out, &gradient)?;
        let sizes = Sizes { ahead: i32::from(ahead == Ahead::One), ..sizes };
        let tiles = self.tiles(geometry, limit, (geometry.queries, shape.rows))?;
        let args = [
            address(OP, of_q)?,
            address(OP, dots)?,
            address(OP, &q)?,
            address(OP, &k)?,
            address(OP, &v)?,
            address(OP, &out)?,
            address(OP, &gradient)?,
            address(OP, logs)?,
            mask(limit)?,
            tiles.list()?,
            super::bytes(&sizes),
        ];
        let grid = shape.grid(&tiles, geometry.heads, shape.query_gradient(ahead));
        let kernel = format!("query_gradient_tiles_{name}_{}", shape.width);
        self.launch(&kernel, grid, of_q.shape().volume(), &args)?;
        let tiles = match tiles.list {
            // Documents have as many keys as queries.
            Some(_) => tiles,
            None => self.tiles(geometry, limit, (geometry.keys, shape.rows))?,
        };
        let args = [
            address(OP, of_k)?,
            address(OP, of_v)?,
            address(OP, &q)?,
            address(OP, &k)?,
            address(OP, &v)?,
            address(OP, &gradient)?,
            address(OP, logs)?,
            address(OP, dots)?,
            mask(limit)?,
            tiles.list()?,
            super::bytes(&sizes),
        ];
        let grid = shape.grid(&tiles, geometry.kv_heads, shape.key_gradient(ahead));
        // The sums of both would not fit in registers for the widest heads.
        let prefixes: &[&str] = match shape.width {
            256 => &["key_only_gradient_tiles", "value_only_gradient_tiles"],
            _ => &["key_gradient_tiles"],
        };
        for prefix in prefixes {
            self.launch(&format!("{prefix}_{name}_{}", shape.width), grid, of_k.shape().volume(), &args)?;
        }
        Ok(())
    }
}
