# The two libraries that hosts link: libdsv41.so and libdsv41.a, from the objects of all rooms, and how they are installed.
# Expects DSV41_OBJECTS and DSV41_THIRD_PARTY.
include(CMakePackageConfigHelpers)

set(DSV41_VERSION_SCRIPT ${CMAKE_SOURCE_DIR}/cmake/dsv41.map)

# Exports exactly the names in cmake/dsv41.map: no symbol of the C++ runtime, of a static archive, or of our own rooms.
add_library(dsv41 SHARED ${DSV41_OBJECTS})
add_library(dsv41::dsv41 ALIAS dsv41)
set_target_properties(dsv41 PROPERTIES
  SOVERSION 0
  VERSION ${PROJECT_VERSION}
  EXPORT_NAME dsv41
  LINK_DEPENDS ${DSV41_VERSION_SCRIPT})
target_link_options(dsv41 PRIVATE -Wl,--version-script=${DSV41_VERSION_SCRIPT} -Wl,--exclude-libs,ALL -Wl,-z,relro,-z,now)
if(NOT DSV41_SANITIZE)
  target_link_options(dsv41 PRIVATE -Wl,-z,defs)
endif()
target_link_libraries(dsv41 PRIVATE ${DSV41_THIRD_PARTY} Threads::Threads)

# A host that links the archive brings the third-party archives itself; the package and pkg-config --static name them.
add_library(dsv41_static STATIC ${DSV41_OBJECTS})
add_library(dsv41::dsv41_static ALIAS dsv41_static)
set_target_properties(dsv41_static PROPERTIES OUTPUT_NAME dsv41)
set(DSV41_STATIC_NAMES)
foreach(library IN LISTS DSV41_THIRD_PARTY)
  get_filename_component(name ${library} NAME_WE)
  string(REGEX REPLACE "^lib" "" name ${name})
  list(APPEND DSV41_STATIC_NAMES ${name})
endforeach()
target_link_libraries(dsv41_static
  PRIVATE "$<BUILD_INTERFACE:${DSV41_THIRD_PARTY}>"
  INTERFACE "$<INSTALL_INTERFACE:${DSV41_STATIC_NAMES}>" $<INSTALL_INTERFACE:Threads::Threads> $<INSTALL_INTERFACE:stdc++>
            $<INSTALL_INTERFACE:m>)

foreach(library dsv41 dsv41_static)
  target_include_directories(${library} INTERFACE
    $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endforeach()

# Debug information of the public types, which scripts/abi_check.sh reads; -g1 has none.
target_compile_options(dsv41_room_api PRIVATE -g)

# --- Install ------------------------------------------------------------------------------------------------------------
install(TARGETS dsv41 dsv41_static EXPORT dsv41-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/dsv41 DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT dsv41-targets NAMESPACE dsv41:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/dsv41)

configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/dsv41-config.cmake.in ${CMAKE_BINARY_DIR}/dsv41-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/dsv41)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/dsv41-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/dsv41-config.cmake ${CMAKE_BINARY_DIR}/dsv41-config-version.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/dsv41)

# The pkg-config file finds its prefix from its own place, so that an installed tree can be moved as a whole. The way up depends
# on the depth of libdir (lib, or lib/x86_64-linux-gnu).
file(RELATIVE_PATH DSV41_PC_UP "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" DSV41_PC_UP "${DSV41_PC_UP}")
list(TRANSFORM DSV41_STATIC_NAMES PREPEND "-l" OUTPUT_VARIABLE DSV41_PC_PRIVATE)
string(JOIN " " DSV41_PC_PRIVATE ${DSV41_PC_PRIVATE} -lstdc++ -lm -lpthread)
configure_file(${CMAKE_SOURCE_DIR}/cmake/dsv41.pc.in ${CMAKE_BINARY_DIR}/dsv41.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/dsv41.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
