#include "support/crash_disk.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/file_system.h"

namespace dsv41::test {

CrashDisk::InodePtr CrashDisk::find(const std::string& path) const {
  const auto found = names_.find(path);
  return found == names_.end() ? nullptr : found->second;
}

// --- Changes of what programs see ---------------------------------------------------------------------------------------

CrashDisk::InodePtr CrashDisk::create(const std::string& path) {
  const InodePtr inode = std::make_shared<Inode>();
  names_[path] = inode;
  pending_.push_back({.what = Change::What::kCreate, .inode = inode, .to = path});
  return inode;
}

void CrashDisk::rename(const std::string& from, const std::string& to) {
  const InodePtr inode = find(from);
  names_.erase(from);
  names_[to] = inode;
  pending_.push_back({.what = Change::What::kRename, .inode = inode, .from = from, .to = to});
}

void CrashDisk::unlink(const std::string& path) {
  pending_.push_back({.what = Change::What::kUnlink, .inode = find(path), .from = path});
  names_.erase(path);
}

void CrashDisk::write(const InodePtr& inode, uint64_t offset, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const uint64_t end = offset + bytes.size();
  if (end > inode->view.size()) resize(inode, end);
  std::copy(bytes.begin(), bytes.end(), inode->view.begin() + static_cast<ptrdiff_t>(offset));
  for (uint64_t sector_idx = offset / kSectorBytes; sector_idx * kSectorBytes < end; ++sector_idx) {
    Change change = {.what = Change::What::kSector, .inode = inode, .number = sector_idx};
    const uint64_t begin = sector_idx * kSectorBytes;
    const uint64_t n = std::min<uint64_t>(kSectorBytes, inode->view.size() - begin);
    change.sector.assign(inode->view.begin() + static_cast<ptrdiff_t>(begin),
                         inode->view.begin() + static_cast<ptrdiff_t>(begin + n));
    change.sector.resize(kSectorBytes);
    pending_.push_back(std::move(change));
  }
}

void CrashDisk::resize(const InodePtr& inode, uint64_t bytes) {
  if (bytes == inode->view.size()) return;
  inode->view.resize(bytes);
  pending_.push_back({.what = Change::What::kSize, .inode = inode, .number = bytes});
}

// --- What becomes durable -----------------------------------------------------------------------------------------------

// Sectors may lie beyond the size while changes are applied; only the end cuts them off. A smaller size clears what is
// beyond it, so that a later, larger one shows zeros.
std::vector<std::byte> CrashDisk::content_after(const std::vector<std::byte>& durable,
                                                const std::vector<const Change*>& changes) {
  std::vector<std::byte> bytes = durable;
  uint64_t size = durable.size();
  for (const Change* change : changes) {
    if (change->what == Change::What::kSize) {
      size = change->number;
      if (size < bytes.size()) bytes.resize(size);
      continue;
    }
    const uint64_t begin = change->number * kSectorBytes;
    if (bytes.size() < begin + kSectorBytes) bytes.resize(begin + kSectorBytes);
    std::copy(change->sector.begin(), change->sector.end(), bytes.begin() + static_cast<ptrdiff_t>(begin));
  }
  bytes.resize(size);
  return bytes;
}

void CrashDisk::sync_data(const InodePtr& inode) {
  std::vector<const Change*> done;
  std::vector<Change> left, doomed;
  for (Change& change : pending_) {
    if (change.inode != inode || change.is_name()) {
      left.push_back(std::move(change));
    } else if (change.doomed) {
      doomed.push_back(std::move(change));
    } else {
      done.push_back(&change);
      supersede(doomed, change);
    }
  }
  inode->durable = content_after(inode->durable, done);
  std::move(doomed.begin(), doomed.end(), std::back_inserter(left));
  pending_ = std::move(left);
}

// Doomed sectors that are written again or cut off are no longer in question.
void CrashDisk::supersede(std::vector<Change>& doomed, const Change& by) {
  if (by.what == Change::What::kSector) {
    std::erase_if(doomed, [&](const Change& old) { return old.number == by.number; });
    return;
  }
  std::erase_if(doomed, [&](const Change& old) { return old.number * kSectorBytes >= by.number; });
  for (Change& old : doomed) {
    const uint64_t n_kept = std::min(kSectorBytes, by.number - old.number * kSectorBytes);
    std::fill(old.sector.begin() + static_cast<ptrdiff_t>(n_kept), old.sector.end(), std::byte{0});
  }
}

void CrashDisk::doom(const InodePtr& inode) {
  for (Change& change : pending_) {
    if (change.inode == inode && change.what == Change::What::kSector) change.doomed = true;
  }
}

void CrashDisk::apply_name(Names& names, const Change& change) {
  if (change.what != Change::What::kCreate) {
    const auto from = names.find(change.from);
    if (from == names.end() || from->second != change.inode) return;
    names.erase(from);
  }
  if (change.what != Change::What::kUnlink) names[change.to] = change.inode;
}

// What is due takes with it the earlier changes of the same file, without which it could not be.
void CrashDisk::commit_names(const std::function<bool(Change&)>& is_due) {
  std::set<InodePtr> needed;
  std::vector<bool> commits(pending_.size());
  for (size_t i = pending_.size(); i-- > 0;) {
    Change& change = pending_[i];
    if (!change.is_name() || !(is_due(change) || needed.count(change.inode) != 0)) continue;
    commits[i] = true;
    needed.insert(change.inode);
  }
  std::vector<Change> left;
  for (size_t i = 0; i < pending_.size(); ++i) {
    if (commits[i]) {
      apply_name(durable_names_, pending_[i]);
    } else {
      left.push_back(std::move(pending_[i]));
    }
  }
  pending_ = std::move(left);
  forget_nameless();
}

// The bytes of files that no crash can show.
void CrashDisk::forget_nameless() {
  std::set<InodePtr> named;
  for (const auto& [path, inode] : durable_names_) named.insert(inode);
  for (const Change& change : pending_) {
    if (!change.to.empty()) named.insert(change.inode);
  }
  std::erase_if(pending_, [&](const Change& change) { return named.count(change.inode) == 0; });
}

void CrashDisk::sync_folder(const std::string& path) {
  commit_names([&](Change& change) {
    change.from_synced |= change.from.empty() || folder_of(change.from) == path;
    change.to_synced |= change.to.empty() || folder_of(change.to) == path;
    return change.from_synced && change.to_synced;
  });
}

// --- Damage -------------------------------------------------------------------------------------------------------------

void CrashDisk::settle(const InodePtr& inode) {
  commit_names([&](const Change& change) { return change.inode == inode; });
  std::erase_if(pending_, [&](const Change& change) { return change.inode == inode; });
}

void CrashDisk::put(const std::string& path, std::vector<std::byte> bytes) {
  const InodePtr found = find(path);
  const InodePtr inode = found ? found : std::make_shared<Inode>();
  settle(inode);
  names_[path] = durable_names_[path] = inode;
  inode->view = inode->durable = std::move(bytes);
}

void CrashDisk::erase(const std::string& path) {
  if (const InodePtr inode = find(path)) settle(inode);
  names_.erase(path);
  durable_names_.erase(path);
}

// --- Power cuts ---------------------------------------------------------------------------------------------------------

CrashDisk CrashDisk::after_crash(const std::function<bool(size_t)>& survives) const {
  Names names = durable_names_;
  std::map<InodePtr, std::vector<const Change*>> changes;
  for (size_t i = 0; i < pending_.size(); ++i) {
    if (!survives(i)) continue;
    if (pending_[i].is_name()) {
      apply_name(names, pending_[i]);
    } else {
      changes[pending_[i].inode].push_back(&pending_[i]);
    }
  }
  CrashDisk disk;
  disk.folders_ = folders_;
  for (const auto& [path, inode] : names) {
    const InodePtr copy = std::make_shared<Inode>();
    copy->view = copy->durable = content_after(inode->durable, changes[inode]);
    disk.names_[path] = disk.durable_names_[path] = copy;
  }
  return disk;
}

std::string CrashDisk::describe() const {
  const auto name_of = [&](const InodePtr& inode) -> std::string {
    for (const auto& [path, other] : names_) {
      if (other == inode) return path;
    }
    return "(unlinked)";
  };
  std::string text;
  for (size_t i = 0; i < pending_.size(); ++i) {
    const Change& change = pending_[i];
    text += std::to_string(i) + ": ";
    switch (change.what) {
      case Change::What::kSector: text += name_of(change.inode) + " sector " + std::to_string(change.number); break;
      case Change::What::kSize: text += name_of(change.inode) + " size " + std::to_string(change.number); break;
      case Change::What::kCreate: text += "create " + change.to; break;
      case Change::What::kRename: text += "rename " + change.from + " to " + change.to; break;
      case Change::What::kUnlink: text += "unlink " + change.from; break;
    }
    text += change.doomed ? " (a sync of it failed)\n" : "\n";
  }
  return text;
}

}  // namespace dsv41::test
