"""Serves a GGUF file with llama.cpp's server until killed. Arguments: FILE NAME PORT."""

import sys
import threading

import xllamacpp


def main():
    path, name, port = sys.argv[1:]
    parameters = xllamacpp.CommonParams()
    parameters.model.path, parameters.model_alias, parameters.port = path, {name}, int(port)
    parameters.n_ctx, parameters.n_parallel = 2048, 2
    parameters.cache_type_k = parameters.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    parameters.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(parameters)
    print(server.listening_address, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
