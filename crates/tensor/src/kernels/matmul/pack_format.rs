//! Packed representations of elements.

use std::marker::PhantomData;

use bytemuck::Pod;
use half::bf16;

use super::microkernel::{Panels, Tiles};
#[cfg(target_arch = "x86_64")]
use super::small_m::{self, Lines};
use crate::element::{Float, Wide};
use crate::vectors::dispatch;

/// The element type, packed type and sum type of a product.
pub(super) trait PackFormat: Sync {
    type Source: Float<Wide = Self::Sum>;
    type Packed: Pod + Send + Sync;
    type Sum: Vectors;

    /// Elements along the depth in one packed value.
    const DEPTH: usize;
    const ZERO: Self::Packed;

    /// Columns of a microkernel tile on this CPU.
    fn columns() -> usize;

    /// The packed value at a position of the depth.
    fn pack_one(elements: &[Self::Source], place: usize, depth_stride: usize) -> Self::Packed;

    /// The packed value of a last element without a partner.
    fn pack_last(element: Self::Source) -> Self::Packed;

    /// Packed values of neighbouring lines.
    fn pack_rows(elements: &[Self::Source], depth_stride: usize, out: &mut [Self::Packed]);

    /// Packed values along the depth of one line.
    fn pack_line(elements: &[Self::Source], out: &mut [Self::Packed]);

    /// Adds the products of rows and one panel of columns to sums.
    fn add(panels: Panels<'_, '_, Self::Packed, Self::Sum>);

    /// Whether [`stream`](Self::stream) can be used on this CPU.
    #[cfg(target_arch = "x86_64")]
    fn can_stream() -> bool;

    /// Multiplies a few rows with unpacked columns.
    #[cfg(target_arch = "x86_64")]
    fn stream(lines: Lines<'_, '_, Self::Source, Self::Packed, Self::Sum>);
}

/// Every element widened to its compute type.
pub(super) struct Widened<T>(PhantomData<T>);

impl<T: Float<Wide: Vectors>> PackFormat for Widened<T> {
    type Source = T;
    type Packed = T::Wide;
    type Sum = T::Wide;

    const DEPTH: usize = 1;
    const ZERO: T::Wide = <T::Wide as Vectors>::ZERO;

    fn columns() -> usize {
        struct Columns<W>(PhantomData<W>);
        impl<W: Vectors> pulp::WithSimd for Columns<W> {
            type Output = usize;

            #[inline(always)]
            fn with_simd<S: pulp::Simd>(self, _: S) -> usize {
                2 * W::lanes::<S>()
            }
        }
        dispatch(Columns::<T::Wide>(PhantomData))
    }

    #[inline(always)]
    fn pack_one(elements: &[T], place: usize, _: usize) -> T::Wide {
        elements[place].widen()
    }

    #[inline(always)]
    fn pack_last(element: T) -> T::Wide {
        element.widen()
    }

    #[inline(always)]
    fn pack_rows(elements: &[T], _: usize, out: &mut [T::Wide]) {
        // Pieces of a fixed size compile to a few moves instead of a call.
        let count = out.len();
        let (pieces, rest) = out.as_chunks_mut::<8>();
        let (sources, _) = elements[..count].as_chunks::<8>();
        for (out, source) in pieces.iter_mut().zip(sources) {
            *out = source.map(T::widen);
        }
        for (out, x) in rest.iter_mut().zip(&elements[count / 8 * 8..]) {
            *out = x.widen();
        }
    }

    #[inline(always)]
    fn pack_line(elements: &[T], out: &mut [T::Wide]) {
        // As above.
        let (pieces, rest) = out.as_chunks_mut::<4>();
        let (sources, last) = elements.as_chunks::<4>();
        for (out, source) in pieces.iter_mut().zip(sources) {
            *out = source.map(T::widen);
        }
        for (out, x) in rest.iter_mut().zip(last) {
            *out = x.widen();
        }
    }

    fn add(panels: Panels<'_, '_, T::Wide, T::Wide>) {
        dispatch(Tiles(panels));
    }

    #[cfg(target_arch = "x86_64")]
    fn can_stream() -> bool {
        small_m::widened::<T>()
    }

    #[cfg(target_arch = "x86_64")]
    fn stream(lines: Lines<'_, '_, T, T::Wide, T::Wide>) {
        small_m::multiply(lines);
    }
}

/// Pairs along the depth, for bf16 dot products.
#[cfg(target_arch = "x86_64")]
pub(super) struct Bf16Pairs;

#[cfg(target_arch = "x86_64")]
impl PackFormat for Bf16Pairs {
    type Source = bf16;
    type Packed = [bf16; 2];
    type Sum = f32;

    const DEPTH: usize = 2;
    const ZERO: [bf16; 2] = [bf16::ZERO; 2];

    fn columns() -> usize {
        super::bf16_dot::COLUMNS
    }

    #[inline(always)]
    fn pack_one(elements: &[bf16], place: usize, depth_stride: usize) -> [bf16; 2] {
        [elements[place], elements[place + depth_stride]]
    }

    #[inline(always)]
    fn pack_last(element: bf16) -> [bf16; 2] {
        [element, bf16::ZERO]
    }

    #[inline(always)]
    fn pack_rows(elements: &[bf16], depth_stride: usize, out: &mut [[bf16; 2]]) {
        let next = &elements[depth_stride..];
        for ((out, &first), &second) in out.iter_mut().zip(elements).zip(next) {
            *out = [first, second];
        }
    }

    #[inline(always)]
    fn pack_line(elements: &[bf16], out: &mut [[bf16; 2]]) {
        out.copy_from_slice(bytemuck::cast_slice(elements));
    }

    fn add(panels: Panels<'_, '_, [bf16; 2], f32>) {
        super::bf16_dot::add(panels);
    }

    fn can_stream() -> bool {
        true
    }

    fn stream(lines: Lines<'_, '_, bf16, [bf16; 2], f32>) {
        super::bf16_dot::stream(lines);
    }
}

/// Compute types as vectors of any width.
pub(crate) trait Vectors: Wide + Pod {
    /// A vector of them.
    type Vector<S: pulp::Simd>: Pod + Send + Sync;

    /// Zero.
    const ZERO: Self;

    /// Lanes of a vector.
    fn lanes<S: pulp::Simd>() -> usize {
        size_of::<Self::Vector<S>>() / size_of::<Self>()
    }

    /// One number in every lane.
    fn splat<S: pulp::Simd>(width: S, x: Self) -> Self::Vector<S>;

    /// `a · b + c`, rounded once where the CPU can.
    fn multiply_add<S: pulp::Simd>(
        width: S,
        a: Self::Vector<S>,
        b: Self::Vector<S>,
        c: Self::Vector<S>,
    ) -> Self::Vector<S>;
}

macro_rules! vectors {
    ($($wide:ty, $vector:ident, $splat:ident, $multiply_add:ident;)*) => {
        $(impl Vectors for $wide {
            type Vector<S: pulp::Simd> = S::$vector;

            const ZERO: Self = 0.0;

            #[inline(always)]
            fn splat<S: pulp::Simd>(width: S, x: Self) -> S::$vector {
                width.$splat(x)
            }

            #[inline(always)]
            fn multiply_add<S: pulp::Simd>(
                width: S,
                a: S::$vector,
                b: S::$vector,
                c: S::$vector,
            ) -> S::$vector {
                width.$multiply_add(a, b, c)
            }
        })*
    };
}

vectors! {
    f32, f32s, splat_f32s, mul_add_e_f32s;
    f64, f64s, splat_f64s, mul_add_e_f64s;
}
