// Messages of a conversation in a file of their own, without KV memory: what --store keeps beside its folder, where the
// KV memory is. {"program", "model": fingerprint, "chat": what Saves was given}.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace dsv41_chat {

// Writes the file, or replaces it whole: whoever looks, also after a power cut, finds the old one or the new one. Throws
// ApiError.
void write_messages(const std::string& path, const std::string& model, const nlohmann::ordered_json& chat);

// Throws ApiError: no such file, not such a file, of another model.
nlohmann::ordered_json read_messages(const std::string& path, const std::string& model);

}  // namespace dsv41_chat
