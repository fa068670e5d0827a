#include "backend/backend.h"

namespace dsv41::backend {

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    release();
    backend_ = std::move(other.backend_);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    use_ = other.use_;
  }
  return *this;
}

void Buffer::release() {
  if (data_) backend_->free(data_, bytes_, use_);
  data_ = nullptr;
  backend_.reset();
}

}  // namespace dsv41::backend
