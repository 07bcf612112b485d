// The functions of NVIDIA's driver that Weightloom calls, over memory of the host. Everything is done at once.

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>

#include "threads.h"

namespace {

typedef int Result;
enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_HANDLE = 400, NOT_FOUND = 500, ILLEGAL_ADDRESS = 700,
       LAUNCH_FAILED = 719 };

struct Kernel {
    const char* name;
    Entry entry;
};

template <class F> struct Call;
template <class... A> struct Call<void (*)(A...)> {
    template <size_t... I> static void unpack(void (*f)(A...), void** args, std::index_sequence<I...>) {
        f(*(A*)args[I]...);
    }
};
template <class... A> void call(void (*f)(A...), void** args) {
    Call<void (*)(A...)>::unpack(f, args, std::index_sequence_for<A...>());
}

}  // namespace

#include "kernels.cu"

namespace {

const Kernel KERNELS[] = {
#define KERNEL(name) {#name, [](void** args) { call(name, args); }},
#include "kernels.inc"
};

// Held by whoever runs a kernel or changes the list of blocks.
std::mutex device;
std::map<uint64_t, size_t> blocks;
size_t in_use;
bool lost;

size_t memory_size() {
    const char* text = getenv("WEIGHTLOOM_EMULATED_MEMORY");
    return text ? strtoull(text, nullptr, 10) : (size_t)8 << 30;
}

// Whether bytes are inside one block.
bool inside(uint64_t address, size_t bytes) {
    auto after = blocks.upper_bound(address);
    if (after == blocks.begin()) return false;
    --after;
    return address + bytes <= after->first + after->second;
}

Result fail(const char* why) {
    fprintf(stderr, "emulated GPU: %s\n", why);
    lost = true;
    return LAUNCH_FAILED;
}

Result copied(void* to, const void* from, size_t bytes, uint64_t device_address) {
    std::lock_guard<std::mutex> held(device);
    if (lost) return LAUNCH_FAILED;
    if (!inside(device_address, bytes)) {
        lost = true;
        return ILLEGAL_ADDRESS;
    }
    memmove(to, from, bytes);
    return SUCCESS;
}

}  // namespace

extern "C" {

Result cuInit(unsigned) { return SUCCESS; }
Result cuDriverGetVersion(int* version) { *version = 13000; return SUCCESS; }
Result cuDeviceGetCount(int* count) { *count = 1; return SUCCESS; }
Result cuDeviceGet(int* found, int number) { *found = number; return number == 0 ? SUCCESS : INVALID_VALUE; }
Result cuDeviceGetName(char* name, int size, int) {
    snprintf(name, (size_t)size, "emulated");
    return SUCCESS;
}
Result cuDeviceTotalMem_v2(size_t* bytes, int) { *bytes = memory_size(); return SUCCESS; }
// Numbers of `CUdevice_attribute`.
Result cuDeviceGetAttribute(int* value, int attribute, int) {
    switch (attribute) {
        case 16: *value = 1; break;                // multiprocessors
        case 75: *value = 9; break;                // compute capability
        case 76: *value = 0; break;
        case 97: *value = 227 << 10; break;        // shared memory that a block can ask for
        default: return INVALID_VALUE;
    }
    return SUCCESS;
}
Result cuDevicePrimaryCtxRetain(void** context, int) { *context = &blocks; return SUCCESS; }
Result cuCtxSetCurrent(void*) { return SUCCESS; }
Result cuStreamCreate(void** stream, unsigned) { *stream = &blocks; return SUCCESS; }
Result cuStreamSynchronize(void*) { return lost ? LAUNCH_FAILED : SUCCESS; }
Result cuStreamWaitEvent(void*, void*, unsigned) { return SUCCESS; }
Result cuEventCreate(void** event, unsigned) { *event = &blocks; return SUCCESS; }
Result cuEventRecord(void*, void*) { return SUCCESS; }
Result cuEventSynchronize(void*) { return lost ? LAUNCH_FAILED : SUCCESS; }
Result cuEventElapsedTime_v2(float* milliseconds, void*, void*) { *milliseconds = 0; return SUCCESS; }

Result cuGetErrorName(Result result, const char** name) {
    switch (result) {
        case INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; break;
        case OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
        case NOT_FOUND: *name = "CUDA_ERROR_NOT_FOUND"; break;
        case ILLEGAL_ADDRESS: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; break;
        case LAUNCH_FAILED: *name = "CUDA_ERROR_LAUNCH_FAILED"; break;
        default: return INVALID_VALUE;
    }
    return SUCCESS;
}

Result cuMemAlloc_v2(uint64_t* address, size_t bytes) {
    std::lock_guard<std::mutex> held(device);
    if (bytes > memory_size() - in_use) return OUT_OF_MEMORY;
    void* memory = nullptr;
    if (posix_memalign(&memory, 512, bytes) != 0) return OUT_OF_MEMORY;
    // Reads as NaN.
    memset(memory, 0xff, bytes);
    *address = (uint64_t)memory;
    blocks[*address] = bytes;
    in_use += bytes;
    return SUCCESS;
}
Result cuMemFree_v2(uint64_t address) {
    std::lock_guard<std::mutex> held(device);
    auto found = blocks.find(address);
    if (found == blocks.end()) return INVALID_VALUE;
    in_use -= found->second;
    blocks.erase(found);
    free((void*)address);
    return SUCCESS;
}
Result cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
    std::lock_guard<std::mutex> held(device);
    *total = memory_size();
    *free_bytes = *total - in_use;
    return SUCCESS;
}
Result cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
    return posix_memalign(memory, 4096, bytes) == 0 ? SUCCESS : OUT_OF_MEMORY;
}
Result cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void*) {
    return copied((void*)to, from, bytes, to);
}
Result cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void*) {
    return copied(to, (const void*)from, bytes, from);
}
Result cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void*) {
    return copied((void*)to, (const void*)from, bytes, to);
}
Result cuMemsetD8Async(uint64_t to, unsigned char byte, size_t bytes, void*) {
    std::lock_guard<std::mutex> held(device);
    if (!inside(to, bytes)) return ILLEGAL_ADDRESS;
    memset((void*)to, byte, bytes);
    return SUCCESS;
}

Result cuModuleLoadData(void** module, const void*) { *module = &blocks; return SUCCESS; }
Result cuModuleGetFunction(void** function, void*, const char* name) {
    for (const Kernel& kernel : KERNELS)
        if (strcmp(kernel.name, name) == 0) {
            *function = (void*)&kernel;
            return SUCCESS;
        }
    return NOT_FOUND;
}
Result cuFuncSetAttribute(void*, int, int) { return SUCCESS; }
Result cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads_x, unsigned threads_y,
                      unsigned threads_z, unsigned shared, void*, void** args, void**) {
    const Kernel& kernel = *(const Kernel*)function;
    std::lock_guard<std::mutex> held(device);
    if (lost) return LAUNCH_FAILED;
    if (x == 0 || y == 0 || z == 0 || y > 65535 || z > 65535) return INVALID_VALUE;
    const char* problem =
        run({kernel.name, kernel.entry, args, {x, y, z}, {threads_x, threads_y, threads_z}, shared});
    return problem ? fail(problem) : SUCCESS;
}

}
