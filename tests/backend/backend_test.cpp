#include "backend/backend.h"

#include <doctest/doctest.h>

#include <cstring>
#include <vector>

#include "backend/registry.h"
#include "kernels/common/cpu_features.h"

namespace dsv41::test {
namespace {

TEST_SUITE("backend/backend") {
  TEST_CASE("every registered backend can be made, and knows its name and numeric class") {
    for (const char* name : backend::backend_names()) {
      auto made = backend::create_backend(name, {});
      REQUIRE(made.ok());
      CHECK(std::string(made.value()->name()) == name);
      CHECK(made.value()->numeric_class().starts_with(std::string(name) + "/"));
      CHECK(made.value()->n_threads() >= 1);
    }
  }

  TEST_CASE("unknown backends, targets and absurd thread counts are refused") {
    CHECK(backend::create_backend("tpu", {}).status().code() == Code::kBACKEND_UNAVAILABLE);
    backend::BackendOptions options;
    options.cpu_target = "mmx";
    CHECK(backend::create_backend("cpu", options).status().code() == Code::kINVALID_ARG);
    options.cpu_target.clear();
    for (int n : {-1, 1000000}) {
      options.n_threads = n;
      CHECK(backend::create_backend("cpu", options).status().code() == Code::kINVALID_ARG);
    }
  }

  TEST_CASE("each CPU target of the machine can be forced and is told by the numeric class") {
    for (kernels::CpuTarget target : kernels::supported_cpu_targets()) {
      backend::BackendOptions options;
      options.cpu_target = kernels::cpu_target_name(target);
      auto made = backend::create_backend("cpu", options);
      REQUIRE(made.ok());
      CHECK(made.value()->numeric_class().find(options.cpu_target) != std::string::npos);
    }
  }

  TEST_CASE("buffers are aligned, arenas start as zeros, copies carry bytes") {
    auto backend = backend::create_backend("cpu", {}).value();
    auto queue = backend->create_queue().value();
    for (uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{64}, uint64_t{100001}}) {
      backend::Buffer a = backend->allocate(bytes, backend::MemoryUse::kWorkspace).value();
      CHECK(reinterpret_cast<uintptr_t>(a.data()) % 64 == 0);
    }
    backend::Buffer arena = backend->allocate(5 << 20, backend::MemoryUse::kArena).value();
    CHECK(reinterpret_cast<uintptr_t>(arena.data()) % (2 << 20) == 0);
    CHECK(arena.as<uint8_t>()[(5 << 20) - 1] == 0);
    const std::vector<uint8_t> in = {1, 2, 3, 4, 5};
    std::vector<uint8_t> out(5);
    REQUIRE(queue->copy_to_device(arena.data() + 7, in.data(), in.size()).ok());
    REQUIRE(queue->copy(arena.data() + 100, arena.data() + 7, in.size()).ok());
    REQUIRE(queue->copy_to_host(out.data(), arena.data() + 100, out.size()).ok());
    REQUIRE(queue->wait().ok());
    CHECK(in == out);
  }

  TEST_CASE("an arena far beyond memory is reserved, not committed; an impossible one is an error") {
    auto backend = backend::create_backend("cpu", {}).value();
    auto large = backend->allocate(uint64_t{1} << 40, backend::MemoryUse::kArena);
    if (large.ok()) large->as<uint8_t>()[(uint64_t{1} << 40) - 1] = 1;
    CHECK(backend->allocate(uint64_t{1} << 62, backend::MemoryUse::kArena).status().code() == Code::kNO_MEMORY);
    CHECK(backend->allocate(UINT64_MAX, backend::MemoryUse::kWorkspace).status().code() == Code::kNO_MEMORY);
  }

  TEST_CASE("a weight at an odd address is copied, an aligned one is used in place") {
    auto backend = backend::create_backend("cpu", {}).value();
    alignas(64) std::byte bytes[64] = {};
    backend::HostWeight weight{tensor::WeightFormat::kF32, 1, 4, bytes, nullptr};
    CHECK(backend->upload(weight).value().view.codes == bytes);
    weight.codes = bytes + 1;
    const backend::DeviceWeight moved = backend->upload(weight).value();
    CHECK(moved.view.codes != bytes + 1);
    CHECK(std::memcmp(moved.view.codes, bytes + 1, 16) == 0);
  }

  TEST_CASE("cpu packs matrices into the memory that it is given, and nothing else; ref packs nothing") {
    const std::vector<std::byte> codes(16 * 64, std::byte{0x38}), scales(2, std::byte{127});
    backend::HostWeight weight{tensor::WeightFormat::kFp8Tile32, 16, 64, codes.data(), scales.data()};
    auto cpu = backend::create_backend("cpu", {}).value(), ref = backend::create_backend("ref", {}).value();
    CHECK(cpu->packed_bytes(weight) == 0);
    weight.is_matrix = true;
    CHECK(ref->packed_bytes(weight) == 0);
    const uint64_t bytes = cpu->packed_bytes(weight);
    REQUIRE(bytes >= 16 * 64 + 2);
    const backend::Buffer memory = cpu->allocate(bytes, backend::MemoryUse::kWeights).value();
    CHECK(reinterpret_cast<uintptr_t>(memory.data()) % (2 << 20) == 0);
    const tensor::WeightView view = cpu->upload_packed(weight, memory.data());
    CHECK(view.layout == tensor::WeightLayout::kPacked);
    CHECK(view.codes == memory.data());
    CHECK(memory.as<uint8_t>()[16 * 64 - 1] == 0x38);
    weight.format = tensor::WeightFormat::kF32;
    CHECK(cpu->packed_bytes(weight) == 0);
  }

  TEST_CASE("an op with bad arguments answers a status") {
    for (const char* name : backend::backend_names()) {
      auto backend = backend::create_backend(name, {}).value();
      auto queue = backend->create_queue().value();
      CHECK(queue->rms_norm({}).code() == Code::kINVALID_ARG);
      CHECK(queue->linear({}).code() != Code::kOK);
    }
  }
}

}  // namespace
}  // namespace dsv41::test
