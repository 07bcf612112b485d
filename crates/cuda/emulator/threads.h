// Runs kernels: blocks one after the other, threads as fibers that switch where they wait.
#pragma once

#include "device.h"

typedef void (*Entry)(void** args);

struct Launch {
    const char* kernel;
    Entry entry;
    void** args;
    Index grid, block;
    unsigned shared;
};

// Returns null, or why the launch failed.
const char* run(const Launch& launch);
