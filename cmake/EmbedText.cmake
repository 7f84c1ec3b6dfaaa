# SPDX-License-Identifier: Apache-2.0
#
# cmake -DHTML=… -DCSS=… -DJS=… -DOUT=FILE -P EmbedText.cmake: the three files as C++ constants, with
# the hashes that a Content-Security-Policy names.
set(_text "// Made by cmake/EmbedText.cmake.\n#include \"analysis/html/template.hpp\"\n\n")
string(APPEND _text "namespace gpubusy::analysis {\n\n")
foreach(_kind IN ITEMS Html Css Js)
  string(TOUPPER ${_kind} _variable)
  file(READ "${${_variable}}" _content)
  # An HTML parser would end the element in the middle; a raw string ends at its mark.
  if(NOT _kind STREQUAL "Html" AND _content MATCHES "</(script|style)|<!--")
    message(FATAL_ERROR "${${_variable}}: has the text </script, </style or <!--")
  endif()
  if(_content MATCHES "\\)GPUBUSY\"")
    message(FATAL_ERROR "${${_variable}}: has the text that ends a raw string")
  endif()
  string(APPEND _text "const std::string_view kReport${_kind} = R\"GPUBUSY(${_content})GPUBUSY\";\n")
  if(NOT _kind STREQUAL "Html")
    file(SHA256 "${${_variable}}" _hash)
    string(APPEND _text "const std::string_view kReport${_kind}Sha256 = \"${_hash}\";\n")
  endif()
endforeach()
string(APPEND _text "\n}  // namespace gpubusy::analysis\n")
file(WRITE "${OUT}" "${_text}")
