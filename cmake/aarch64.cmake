# Toolchain: Debian's cross compiler for aarch64, its programs run by qemu's user mode. The machine that qemu shows has every
# extension it knows; code for those asks for them when it runs.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc-12)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++-12)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -cpu max -L /usr/aarch64-linux-gnu)
