/* A host in plain C that knows only the installed header and library. Exit status 0: the header and the library are of
   one version, and a failing call answers with a status and a text. */
#include <dsv41/dsv41.h>
#include <string.h>

int main(void) {
  dsv41_error error;
  dsv41_runtime* runtime = NULL;
  dsv41_model* model = NULL;
  dsv41_model_options options;
  dsv41_status status;
  dsv41_error_init(&error, sizeof error);
  dsv41_model_options_init(&options, sizeof options);
  options.folder = "no such folder";
  options.folder_size = strlen(options.folder);
  if (dsv41_abi_version() != DSV41_HEADER_ABI) return 1;
  if (dsv41_runtime_create(NULL, &runtime, &error) != DSV41_OK) return 2;
  status = dsv41_model_open(runtime, &options, &model, &error);
  dsv41_runtime_release(runtime);
  if (status != DSV41_NOT_FOUND || error.code != status || model != NULL) return 3;
  return error.message[0] == '\0' ? 4 : 0;
}
