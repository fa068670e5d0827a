#include "kv_tool_snapshots.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <vector>

namespace dsv41_kv {
namespace {

namespace fs = std::filesystem;
using dsv41_samples::ApiError;
using dsv41_samples::info_of;
using dsv41_samples::made_by;
using dsv41_samples::opened_snapshot;
using dsv41_samples::read_list;
using dsv41_samples::Snapshot;

constexpr const char* kExtension = ".dsv41";

Json info_json(const dsv41_snapshot_info& info) {
  return {{"kind", kind_text(info.kind)},
          {"parts", parts_json(info.parts)},
          {"exact", info.is_exact != 0},
          {"format", std::to_string(info.format_major) + "." + std::to_string(info.format_minor)},
          {"n_tokens", info.n_tokens},
          {"total_bytes", info.total_bytes},
          {"kv_raw_bytes", info.kv_raw_bytes},
          {"kv_stored_bytes", info.kv_stored_bytes},
          {"window_raw_bytes", info.window_raw_bytes},
          {"window_stored_bytes", info.window_stored_bytes},
          {"saved_unix_ns", info.saved_unix_ns},
          {"n_host_sections", info.n_host_sections},
          {"model", hex_text(info.model, sizeof info.model)},
          {"layout", hex_text(info.layout, sizeof info.layout)},
          {"salt_digest", hex_text(info.salt_digest, sizeof info.salt_digest)},
          {"chain", hex_text(info.chain, sizeof info.chain)},
          {"numeric_class", info.numeric_class},
          {"writer_version", info.writer_version}};
}

std::vector<uint32_t> host_ids(const Snapshot& snapshot) {
  return read_list<uint32_t>([&](uint32_t* buffer, size_t capacity, size_t* n, dsv41_error* error) {
    return dsv41_snapshot_host_ids(snapshot.get(), buffer, capacity, n, error);
  });
}

std::vector<uint8_t> host_section(const Snapshot& snapshot, uint32_t id) {
  return read_list<uint8_t>([&](uint8_t* buffer, size_t capacity, size_t* n, dsv41_error* error) {
    return dsv41_snapshot_host_section(snapshot.get(), id, buffer, capacity, n, error);
  });
}

// A section of the host's: as JSON if that is what it holds, else in hexadecimal digits.
Json host_json(const Snapshot& snapshot, uint32_t id) {
  const std::vector<uint8_t> bytes = host_section(snapshot, id);
  Json section{{"id", id}, {"size", bytes.size()}};
  Json content = Json::parse(bytes.begin(), bytes.end(), nullptr, false);
  if (content.is_discarded()) {
    section["hex"] = hex_text(bytes.data(), bytes.size());
  } else {
    section["json"] = std::move(content);
  }
  return section;
}

std::vector<std::string> snapshot_files(const std::string& folder) {
  std::error_code failure;
  std::vector<std::string> files;
  for (fs::directory_iterator entry(folder, failure), end; !failure && entry != end; entry.increment(failure))
    if (entry->path().extension() == kExtension) files.push_back(entry->path().filename().string());
  if (failure) throw std::system_error(failure, folder);
  std::sort(files.begin(), files.end());
  return files;
}

std::string line_of(const std::string& file, const dsv41_snapshot_info& info) {
  return file + ": " + std::to_string(info.n_tokens) + " tokens, " + kind_text(info.kind) +
         (info.is_exact ? "" : ", approximate") + ", " + bytes_text(info.total_bytes) + ", saved " +
         time_text(info.saved_unix_ns);
}

}  // namespace

ExitCode list_snapshots(dsv41_runtime* runtime, const std::string& folder, bool as_json) {
  Json all = Json::array();
  ExitCode code = kGood;
  for (const std::string& file : snapshot_files(folder)) {
    Json entry{{"file", file}};
    std::string line;
    try {
      const dsv41_snapshot_info info = info_of(opened_snapshot(runtime, (fs::path(folder) / file).string()));
      entry.update(info_json(info));
      line = line_of(file, info);
    } catch (const ApiError& error) {
      code = exit_code_of(error.code());
      entry["error"] = explained(error);
      line = file + ": " + explained(error);
    }
    all.push_back(std::move(entry));
    if (!as_json) std::printf("%s\n", line.c_str());
  }
  if (as_json) print_json(all);
  if (!as_json && all.empty()) std::printf("There is no *%s file in %s.\n", kExtension, folder.c_str());
  return code;
}

ExitCode show_snapshot(dsv41_runtime* runtime, const std::string& path, bool as_json) {
  const dsv41_snapshot_info info = info_of(opened_snapshot(runtime, path));
  if (as_json) return print_json(info_json(info)), kGood;
  std::printf("tokens     %llu\n", static_cast<unsigned long long>(info.n_tokens));
  std::printf("kind       %s, %s\n", kind_text(info.kind).c_str(),
              info.is_exact ? "exact" : "approximate: a bounded replay took part");
  std::printf("parts      %s\n", parts_text(info.parts).c_str());
  std::printf("size       %s\n", bytes_text(info.total_bytes).c_str());
  std::printf("global KV  %s\n", share_text(info.kv_stored_bytes, info.kv_raw_bytes).c_str());
  std::printf("windows    %s\n", share_text(info.window_stored_bytes, info.window_raw_bytes).c_str());
  std::printf("saved      %s, by libdsv41 %s, format %u.%u\n", time_text(info.saved_unix_ns).c_str(),
              info.writer_version, info.format_major, info.format_minor);
  std::printf("model      %s\n", hex_text(info.model, sizeof info.model).c_str());
  std::printf("KV layout  %s\n", hex_text(info.layout, sizeof info.layout).c_str());
  std::printf("numerics   %s\n", info.numeric_class);
  return kGood;
}

ExitCode verify_snapshot(dsv41_runtime* runtime, const std::string& path, bool deep, bool as_json) {
  const Snapshot snapshot = opened_snapshot(runtime, path);
  auto report = made_by(dsv41_verify_report_init);
  dsv41_error error = made_by(dsv41_error_init);
  const dsv41_status status =
      dsv41_snapshot_verify(snapshot.get(), deep ? DSV41_VERIFY_DECODE : DSV41_VERIFY_CHUNKS, &report, &error);
  const ExitCode code = exit_code_of(status);
  if (code != kGood && code != kDamaged) throw ApiError(error);
  const std::string problem = status < 0 ? explained(ApiError(error)) : "";
  if (as_json) {
    print_json({{"intact", status == DSV41_OK},
                {"level", deep ? "decode" : "chunks"},
                {"n_chunks", report.n_chunks},
                {"n_bad_chunks", report.n_bad_chunks},
                {"n_bad_gaps", report.n_bad_gaps},
                {"first_bad_offset", report.first_bad_offset},
                {"file_hash_is_equal", report.file_hash_is_equal != 0},
                {"problem", problem.empty() ? Json() : Json(problem)}});
  } else if (status == DSV41_OK) {
    std::printf("intact: %llu chunks%s\n", static_cast<unsigned long long>(report.n_chunks),
                deep ? ", decompressed and compared" : "");
  } else {
    std::printf("damaged: %s\n%llu of %llu chunks are wrong, the first damage is at byte %llu\n", problem.c_str(),
                static_cast<unsigned long long>(report.n_bad_chunks), static_cast<unsigned long long>(report.n_chunks),
                static_cast<unsigned long long>(report.first_bad_offset));
  }
  return code;
}

ExitCode dump_snapshot(dsv41_runtime* runtime, const std::string& path) {
  const Snapshot snapshot = opened_snapshot(runtime, path);
  Json all = info_json(info_of(snapshot));
  all["tokens"] = read_list<int32_t>([&](int32_t* buffer, size_t capacity, size_t* n, dsv41_error* error) {
    return dsv41_snapshot_tokens(snapshot.get(), buffer, capacity, n, error);
  });
  all["host"] = Json::array();
  for (const uint32_t id : host_ids(snapshot)) all["host"].push_back(host_json(snapshot, id));
  print_json(all);
  return kGood;
}

}  // namespace dsv41_kv
