// Which sanitizers this program is built with: 1 or 0.
#pragma once

#if defined(__clang__)
#define DSV41_ADDRESS_SANITIZER __has_feature(address_sanitizer)
#define DSV41_THREAD_SANITIZER __has_feature(thread_sanitizer)
#else
#ifdef __SANITIZE_ADDRESS__
#define DSV41_ADDRESS_SANITIZER 1
#else
#define DSV41_ADDRESS_SANITIZER 0
#endif
#ifdef __SANITIZE_THREAD__
#define DSV41_THREAD_SANITIZER 1
#else
#define DSV41_THREAD_SANITIZER 0
#endif
#endif
