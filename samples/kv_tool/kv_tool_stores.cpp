#include "kv_tool_stores.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <thread>
#include <vector>

namespace dsv41_kv {
namespace {

namespace fs = std::filesystem;
using dsv41_samples::ApiError;
using dsv41_samples::call;
using dsv41_samples::error_of;
using dsv41_samples::Handle;
using dsv41_samples::made_by;
using dsv41_samples::Store;

// Longer than a writer takes from the first byte of a record to the last.
constexpr std::chrono::milliseconds kLookAgain{1000};

Store opened(dsv41_runtime* runtime, const std::string& folder, uint32_t lock) {
  try {
    return dsv41_samples::opened_store(runtime, folder, lock);
  } catch (const ApiError& error) {
    if (error.code() != DSV41_LOCKED) throw;
    throw error_of(DSV41_LOCKED, folder +
                                     ": another program writes this store. gc, pin, unpin and remove have to wait " +
                                     "until it has ended; list, info, verify and dump work meanwhile.");
  }
}

Store opened_to_read(dsv41_runtime* runtime, const std::string& folder) {
  return opened(runtime, folder, DSV41_LOCK_READER);
}

// A writer only where there is a store: a wrong path must not become a new one.
Store opened_to_write(dsv41_runtime* runtime, const std::string& folder) {
  if (!is_store(folder)) throw error_of(DSV41_NOT_FOUND, folder + ": there is no store");
  return opened(runtime, folder, DSV41_LOCK_WRITER);
}

dsv41_store_stats stats_of(const Store& store) {
  auto stats = made_by(dsv41_store_stats_init);
  call(dsv41_store_stats_get, store.get(), &stats);
  return stats;
}

std::vector<dsv41_store_entry> entries_of(const Store& store) {
  dsv41_store_iter* made = nullptr;
  call(dsv41_store_iter_create, store.get(), &made);
  const Handle<dsv41_store_iter, dsv41_store_iter_release> iter(made);
  std::vector<dsv41_store_entry> entries;
  for (;;) {
    auto entry = made_by(dsv41_store_entry_init);
    if (call(dsv41_store_iter_next, made, &entry) == DSV41_END) return entries;
    entries.push_back(entry);
  }
}

std::string key_text(const uint8_t (&key)[16]) { return hex_text(key, sizeof key); }

// Empty: it stands on nothing.
std::string parent_text(const dsv41_store_entry& entry) {
  const bool is_first = std::all_of(std::begin(entry.parent), std::end(entry.parent), [](uint8_t b) { return b == 0; });
  return is_first ? "" : key_text(entry.parent);
}

const char* record_text(uint32_t kind) { return kind == DSV41_RECORD_PAGE ? "page" : "state"; }

Json entry_json(const dsv41_store_entry& entry) {
  const std::string parent = parent_text(entry);
  return {{"key", key_text(entry.key)},
          {"kind", record_text(entry.kind)},
          {"parent", parent.empty() ? Json() : Json(parent)},
          {"first_token", entry.first_token},
          {"end_token", entry.end_token},
          {"exact", entry.is_exact != 0},
          {"parts", entry.kind == DSV41_RECORD_STATE ? parts_json(entry.parts) : Json::array()},
          {"stored_bytes", entry.stored_bytes},
          {"raw_bytes", entry.raw_bytes},
          {"written_unix_ns", entry.written_unix_ns},
          {"used_unix_ns", entry.used_unix_ns},
          {"n_pins", entry.n_pins},
          {"pin_reason", entry.pin_reason},
          {"model", hex_text(entry.model, sizeof entry.model)},
          {"numeric_class", entry.numeric_class}};
}

std::string line_of(const dsv41_store_entry& entry) {
  std::string text = key_text(entry.key) + " " + record_text(entry.kind) + ", tokens " +
                     std::to_string(entry.first_token) + " to " + std::to_string(entry.end_token) + ", " +
                     bytes_text(entry.stored_bytes) + (entry.is_exact ? "" : ", approximate") + ", used " +
                     time_text(entry.used_unix_ns);
  if (entry.n_pins == 0) return text;
  return text + ", pinned" + (entry.n_pins > 1 ? " " + std::to_string(entry.n_pins) + " times" : "") +
         (entry.pin_reason[0] ? ": " + std::string(entry.pin_reason) : "");
}

// The record that `key` names.
dsv41_store_entry entry_of(const std::vector<dsv41_store_entry>& entries, const std::string& key) {
  const dsv41_store_entry* found = nullptr;
  for (const dsv41_store_entry& entry : entries) {
    if (key.empty() || key_text(entry.key).compare(0, key.size(), key) != 0) continue;
    if (found) throw error_of(DSV41_INVALID_ARG, "more than one key begins with " + key + ": give more of its digits");
    found = &entry;
  }
  if (!found) throw error_of(DSV41_NOT_FOUND, "no record has the key " + key);
  return *found;
}

// What a change to the catalogue needs to be on disk.
ExitCode done(const Store& store, const std::string& text) {
  call(dsv41_store_flush, store.get(), static_cast<dsv41_cancel*>(nullptr));
  std::printf("%s\n", text.c_str());
  return kGood;
}

// Places that hold no whole record: damage, or what a writer that was stopped has left. A record that a writer has half
// written at this moment is whole when one looks again.
uint64_t count_damaged_places(dsv41_runtime* runtime, const std::string& folder, const Store& store) {
  const uint64_t n_now = stats_of(store).n_damaged_at_open;
  if (n_now == 0) return 0;
  std::this_thread::sleep_for(kLookAgain);
  return std::min(n_now, stats_of(opened_to_read(runtime, folder)).n_damaged_at_open);
}

std::string places_text(uint64_t n) { return counted(n, "place") + (n == 1 ? " holds" : " hold") + " no whole record"; }

}  // namespace

bool is_store(const std::string& folder) {
  std::error_code ignored;
  return fs::is_regular_file(fs::path(folder) / "store", ignored);
}

ExitCode list_store(dsv41_runtime* runtime, const std::string& folder, bool as_json) {
  const std::vector<dsv41_store_entry> entries = entries_of(opened_to_read(runtime, folder));
  Json all = Json::array();
  for (const dsv41_store_entry& entry : entries) {
    if (as_json) {
      all.push_back(entry_json(entry));
    } else {
      std::printf("%s\n", line_of(entry).c_str());
    }
  }
  if (as_json) print_json(all);
  if (!as_json && entries.empty()) std::printf("The store in %s is empty.\n", folder.c_str());
  return kGood;
}

ExitCode show_store(dsv41_runtime* runtime, const std::string& folder, bool as_json) {
  const Store store = opened_to_read(runtime, folder);
  const dsv41_store_stats stats = stats_of(store);
  const std::vector<dsv41_store_entry> entries = entries_of(store);
  std::map<std::string, uint64_t> models;
  uint64_t oldest_ns = UINT64_MAX, newest_ns = 0, n_approximate = 0;
  for (const dsv41_store_entry& entry : entries) {
    ++models[hex_text(entry.model, sizeof entry.model)];
    oldest_ns = std::min(oldest_ns, entry.used_unix_ns);
    newest_ns = std::max(newest_ns, entry.used_unix_ns);
    n_approximate += entry.is_exact == 0;
  }
  if (as_json) {
    print_json({{"n_pages", stats.n_pages},
                {"n_states", stats.n_states},
                {"n_approximate", n_approximate},
                {"n_pinned", stats.n_pinned},
                {"record_bytes", stats.record_bytes},
                {"raw_bytes", stats.raw_bytes},
                {"physical_bytes", stats.physical_bytes},
                {"n_segments", stats.n_segments},
                {"n_damaged_places", stats.n_damaged_at_open},
                {"oldest_use_unix_ns", entries.empty() ? Json() : Json(oldest_ns)},
                {"newest_use_unix_ns", entries.empty() ? Json() : Json(newest_ns)},
                {"records_by_model", models}});
    return kGood;
  }
  std::printf("records    %s, %s; %llu of them approximate, %llu pinned\n", counted(stats.n_pages, "page").c_str(),
              counted(stats.n_states, "state").c_str(), static_cast<unsigned long long>(n_approximate),
              static_cast<unsigned long long>(stats.n_pinned));
  std::printf("content    %s\n", share_text(stats.record_bytes, stats.raw_bytes).c_str());
  std::printf("on disk    %s, %s of pages\n", bytes_text(stats.physical_bytes).c_str(),
              counted(stats.n_segments, "file").c_str());
  if (!entries.empty())
    std::printf("used       %s to %s\n", time_text(oldest_ns).c_str(), time_text(newest_ns).c_str());
  for (const auto& [model, n] : models) std::printf("model      %s: %s\n", model.c_str(), counted(n, "record").c_str());
  if (stats.n_damaged_at_open) std::printf("damaged    %s\n", places_text(stats.n_damaged_at_open).c_str());
  return kGood;
}

ExitCode verify_store(dsv41_runtime* runtime, const std::string& folder, bool deep, bool as_json) {
  const Store store = opened_to_read(runtime, folder);
  auto report = made_by(dsv41_store_verify_report_init);
  dsv41_error error = made_by(dsv41_error_init);
  const dsv41_status status = dsv41_store_verify(store.get(), deep ? 1 : 0, nullptr, &report, &error);
  if (status < 0 && status != DSV41_CORRUPT) throw ApiError(error);
  const uint64_t n_places = count_damaged_places(runtime, folder, store);
  if (as_json) {
    print_json({{"intact", report.n_bad == 0 && n_places == 0},
                {"deep", deep},
                {"n_records", report.n_records},
                {"n_bad", report.n_bad},
                {"bytes", report.bytes},
                {"first_bad", report.n_bad ? Json(key_text(report.first_bad)) : Json()},
                {"problem", report.n_bad ? Json(report.first_problem) : Json()},
                {"n_damaged_places", n_places}});
  } else if (report.n_bad) {
    std::printf("damaged: %llu of %llu records, the first is %s: %s\n", static_cast<unsigned long long>(report.n_bad),
                static_cast<unsigned long long>(report.n_records), key_text(report.first_bad).c_str(),
                report.first_problem);
  } else {
    std::printf("%s: %s%s\n", n_places ? "no damage in what can be found" : "intact",
                counted(report.n_records, "record").c_str(), deep ? ", decompressed" : "");
  }
  if (!as_json && n_places)
    std::printf("damaged: %s. What was there is computed again when it is wanted.\n", places_text(n_places).c_str());
  return report.n_bad || n_places ? kDamaged : kGood;
}

ExitCode dump_record(dsv41_runtime* runtime, const std::string& folder, const std::string& key) {
  const std::vector<dsv41_store_entry> entries = entries_of(opened_to_read(runtime, folder));
  const dsv41_store_entry wanted = entry_of(entries, key);
  Json record = entry_json(wanted);
  Json below = Json::array(), above = Json::array();
  std::string parent = parent_text(wanted);
  // Parents come before what stands on them.
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    if (entry->kind != DSV41_RECORD_PAGE || parent.empty() || key_text(entry->key) != parent) continue;
    below.insert(below.begin(), parent);
    parent = parent_text(*entry);
  }
  for (const dsv41_store_entry& entry : entries)
    if (wanted.kind == DSV41_RECORD_PAGE && parent_text(entry) == key_text(wanted.key))
      above.push_back(key_text(entry.key));
  record["below"] = std::move(below);
  record["above"] = std::move(above);
  print_json(record);
  return kGood;
}

ExitCode shrink_store(dsv41_runtime* runtime, const std::string& folder, uint64_t target_bytes, bool as_json) {
  const Store store = opened_to_write(runtime, folder);
  auto report = made_by(dsv41_gc_report_init);
  call(dsv41_store_gc, store.get(), target_bytes, static_cast<dsv41_cancel*>(nullptr), &report);
  if (as_json) {
    print_json({{"n_expired", report.n_expired},
                {"n_evicted", report.n_evicted},
                {"segments_removed", report.segments_removed},
                {"bytes_freed", report.bytes_freed},
                {"physical_bytes", report.physical_bytes}});
    return kGood;
  }
  std::printf("removed for their age: %llu, for room: %llu; %s freed, %s on disk now\n",
              static_cast<unsigned long long>(report.n_expired), static_cast<unsigned long long>(report.n_evicted),
              bytes_text(report.bytes_freed).c_str(), bytes_text(report.physical_bytes).c_str());
  if (report.physical_bytes > target_bytes) std::printf("The rest is pinned, or what a store takes at least.\n");
  return kGood;
}

ExitCode pin_record(dsv41_runtime* runtime, const std::string& folder, const std::string& key,
                    const std::string& reason) {
  const Store store = opened_to_write(runtime, folder);
  const dsv41_store_entry entry = entry_of(entries_of(store), key);
  call(dsv41_store_pin, store.get(), static_cast<const uint8_t*>(entry.key), reason.data(), reason.size());
  return done(store, "pinned " + key_text(entry.key) + ", and the pages below it");
}

ExitCode unpin_record(dsv41_runtime* runtime, const std::string& folder, const std::string& key) {
  const Store store = opened_to_write(runtime, folder);
  const dsv41_store_entry entry = entry_of(entries_of(store), key);
  call(dsv41_store_unpin, store.get(), static_cast<const uint8_t*>(entry.key));
  return done(store, "unpinned " + key_text(entry.key));
}

ExitCode remove_record(dsv41_runtime* runtime, const std::string& folder, const std::string& key) {
  const Store store = opened_to_write(runtime, folder);
  const std::vector<dsv41_store_entry> before = entries_of(store);
  const dsv41_store_entry entry = entry_of(before, key);
  call(dsv41_store_remove, store.get(), static_cast<const uint8_t*>(entry.key));
  const size_t n_removed = before.size() - entries_of(store).size();
  const std::string above = n_removed > 1 ? ", and what stood on it: " + counted(n_removed - 1, "record") : "";
  return done(store, "removed " + key_text(entry.key) + above);
}

}  // namespace dsv41_kv
