#include "threads.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include <ucontext.h>

Index threadIdx, blockIdx, blockDim, gridDim;

namespace {

constexpr size_t STACK = 128 << 10;
constexpr unsigned MOST_THREADS = 1024;
// The most that a block may ask for on any GPU of compute capability 8.0 or 9.0.
constexpr unsigned MOST_SHARED = 227 << 10;

// A place where threads wait for each other.
struct Barrier {
    unsigned arrived = 0, members = 0;
    uint64_t generation = 0;
    const char* what = nullptr;
};

#if defined(__x86_64__)
// Saves the registers that a function must keep, and goes on where another fiber did so.
asm(R"(
.text
.globl emulated_switch
.type emulated_switch, @function
emulated_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emulated_switch, .-emulated_switch
)");
extern "C" void emulated_switch(void** from, void* to);
struct Context {
    void* top;
};
inline void switch_to(Context& from, Context& to) { emulated_switch(&from.top, to.top); }
void prepare(Context& context, unsigned char* stack, void (*body)()) {
    // Six registers, then the address that `ret` goes to; a function expects 8 bytes less than 16-byte alignment.
    uint64_t* top = (uint64_t*)(stack + STACK - 64);
    *--top = 0;
    *--top = (uint64_t)body;
    for (int i = 0; i < 6; i++) *--top = 0;
    context.top = top;
}
#else
struct Context {
    ucontext_t context;
};
inline void switch_to(Context& from, Context& to) { swapcontext(&from.context, &to.context); }
void prepare(Context& context, unsigned char* stack, void (*body)()) {
    getcontext(&context.context);
    context.context.uc_stack.ss_sp = stack;
    context.context.uc_stack.ss_size = STACK;
    context.context.uc_link = nullptr;
    makecontext(&context.context, body, 0);
}
#endif

struct Fiber {
    Context context;
    const Barrier* waits_for;
    uint64_t generation;
    bool done;
};

Fiber fibers[MOST_THREADS];
Barrier warps[MOST_THREADS / 32], all;
unsigned char exchanges[MOST_THREADS / 32][32 * 64];
alignas(128) unsigned char dynamic[MOST_SHARED];
unsigned char* stacks;
Context scheduler;
unsigned current;
const Launch* launched;
char problem[256];

void yield() { switch_to(fibers[current].context, scheduler); }

void release(Barrier& barrier) {
    barrier.arrived = 0;
    barrier.what = nullptr;
    barrier.generation++;
}

void wait(Barrier& barrier, const char* what) {
    if (barrier.what && strcmp(barrier.what, what) != 0) {
        snprintf(problem, sizeof(problem), "%s: threads of a warp are at %s and at %s", launched->kernel, barrier.what,
                 what);
        for (;;) yield();
    }
    barrier.what = what;
    if (++barrier.arrived == barrier.members) return release(barrier);
    fibers[current].waits_for = &barrier;
    fibers[current].generation = barrier.generation;
    yield();
    fibers[current].waits_for = nullptr;
}

void leave(Barrier& barrier) {
    barrier.members--;
    if (barrier.members > 0 && barrier.arrived == barrier.members) release(barrier);
}

void body() {
    launched->entry(launched->args);
    fibers[current].done = true;
    leave(all);
    // Lanes that are done take no part: what others read of them would be undefined.
    leave(warps[current / 32]);
    for (;;) yield();
}

void place(unsigned thread) {
    const Index& size = launched->block;
    threadIdx = {thread % size.x, thread / size.x % size.y, thread / size.x / size.y};
}

// Runs the threads of one block to their end. `backwards`: the last one first, so that a missing barrier shows.
bool run_block(unsigned threads, bool backwards) {
    all = Barrier();
    all.members = threads;
    for (unsigned warp = 0; warp * 32 < threads; warp++) {
        warps[warp] = Barrier();
        warps[warp].members = threads - warp * 32 < 32 ? threads - warp * 32 : 32;
    }
    for (unsigned thread = 0; thread < threads; thread++) {
        fibers[thread].waits_for = nullptr;
        fibers[thread].done = false;
        prepare(fibers[thread].context, stacks + thread * STACK, body);
    }
    memset(dynamic, 0xff, launched->shared);
    unsigned left = threads;
    while (left > 0) {
        bool moved = false;
        for (unsigned step = 0; step < threads; step++) {
            unsigned thread = backwards ? threads - 1 - step : step;
            Fiber& fiber = fibers[thread];
            if (fiber.done || (fiber.waits_for && fiber.waits_for->generation == fiber.generation)) continue;
            moved = true;
            current = thread;
            place(thread);
            switch_to(scheduler, fiber.context);
            if (problem[0]) return false;
            if (fiber.done) left--;
        }
        if (!moved) {
            snprintf(problem, sizeof(problem), "%s: threads wait for each other at different barriers",
                     launched->kernel);
            return false;
        }
    }
    return true;
}

}  // namespace

unsigned char* emulated_shared() { return dynamic; }
unsigned emulated_lane() { return current % 32; }
unsigned char* emulated_exchange() { return exchanges[current / 32]; }

// Another thread runs while one waits, so the place is restored afterwards by the scheduler.
void __syncthreads() { wait(all, "syncthreads"); }
void emulated_warp(const char* what) { wait(warps[current / 32], what); }

const char* run(const Launch& launch) {
    unsigned threads = launch.block.x * launch.block.y * launch.block.z;
    problem[0] = 0;
    if (threads == 0 || threads > MOST_THREADS || launch.shared > MOST_SHARED) {
        snprintf(problem, sizeof(problem), "%s: %u threads with %u bytes", launch.kernel, threads, launch.shared);
        return problem;
    }
    if (!stacks) {
        void* memory = mmap(nullptr, STACK * MOST_THREADS, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) return "no memory for stacks";
        stacks = (unsigned char*)memory;
    }
    launched = &launch;
    blockDim = launch.block;
    gridDim = launch.grid;
    uint64_t number = 0;
    for (unsigned z = 0; z < launch.grid.z; z++)
        for (unsigned y = 0; y < launch.grid.y; y++)
            for (unsigned x = 0; x < launch.grid.x; x++) {
                blockIdx = {x, y, z};
                if (!run_block(threads, number++ % 2 == 1)) return problem;
            }
    return nullptr;
}
