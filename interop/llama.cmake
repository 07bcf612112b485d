# Read by CMake where llama.cpp begins: the part that chats and command lines need is half of all there is to compile.
set(LLAMA_BUILD_COMMON OFF)
