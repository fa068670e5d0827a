// The library's version, for what names its writer. The public header has the same numbers.
#pragma once

#include <string_view>

namespace dsv41 {

inline constexpr std::string_view kLibraryVersion = "0.1.0";

}  // namespace dsv41
