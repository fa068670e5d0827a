#include "store/staged_file.h"

#include <atomic>
#include <new>
#include <utility>

namespace dsv41::store {
namespace {

constexpr char kMark[] = ".tmp-";
constexpr int kMostNames = 100;

// There is one writer, so a count is enough; names that an earlier process left and nobody could remove are passed
// over.
std::string next_temporary(const std::string& path) {
  static std::atomic<uint64_t> n_names = 0;
  return path + kMark + std::to_string(n_names.fetch_add(1, std::memory_order_relaxed));
}

}  // namespace

Result<StagedFile> StagedFile::write(FileSystem& files, const std::string& path, std::span<const std::byte> bytes) {
  StagedFile staged(files, path);
  for (int i = 1;; ++i) {
    std::string temporary = next_temporary(path);
    Result<std::unique_ptr<File>> file = files.open(temporary, FileSystem::Mode::kCreate);
    if (file.ok()) {
      staged.temporary_ = std::move(temporary);
      staged.file_ = std::move(file).value();
      break;
    }
    if (file.status().code() != Code::kEXISTS || i == kMostNames) return std::move(file).status();
  }
  DSV41_TRY(staged.file_->write_at(0, bytes));
  DSV41_TRY(staged.file_->sync_data());
  staged.n_bytes_ = bytes.size();
  return staged;
}

StagedFile::StagedFile(StagedFile&& other) noexcept
    : files_(other.files_),
      path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      file_(std::move(other.file_)),
      n_bytes_(other.n_bytes_) {}

StagedFile& StagedFile::operator=(StagedFile&& other) noexcept {
  if (this == &other) return *this;
  remove();
  files_ = other.files_;
  path_ = std::move(other.path_);
  temporary_ = std::exchange(other.temporary_, {});
  file_ = std::move(other.file_);
  n_bytes_ = other.n_bytes_;
  return *this;
}

StagedFile::~StagedFile() { remove(); }

void StagedFile::remove() noexcept {
  file_.reset();
  if (temporary_.empty()) return;
  try {
    static_cast<void>(files_->unlink(std::exchange(temporary_, {})));
  } catch (const std::bad_alloc&) {  // the text of a failure that nobody would read
  }
}

Status StagedFile::put_in_place() {
  DSV41_TRY(files_->rename(temporary_, path_));
  temporary_.clear();
  return {};
}

bool is_temporary_name(std::string_view name) { return name.find(kMark) != std::string_view::npos; }

Status replace_file(FileSystem& files, const std::string& path, std::span<const std::byte> bytes) {
  DSV41_TRY_ASSIGN(StagedFile staged, StagedFile::write(files, path, bytes));
  DSV41_TRY(staged.put_in_place());
  return files.sync_folder(folder_of(path));
}

}  // namespace dsv41::store
