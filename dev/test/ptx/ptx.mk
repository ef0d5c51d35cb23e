# ptx.mk: with PTX_DIR=DIR and DEVICE=emulated, DIR/test_kernels is the emulated test_kernels, but its kernels are
# nvcc's PTX (machine.h). The Makefile includes it for dev/test/ptx/check_ptx.sh, which writes the translations,
# DIR/*.cpp.
#
# Without the build's sanitizers and debugging: compilation is quick, and every access is checked by machine.cpp.
PTX_CPP     := $(wildcard $(PTX_DIR)/*.cpp)
PTX_OBJECTS := $(PTX_CPP:.cpp=.o) $(PTX_DIR)/machine.o
PTX_COMPILE  = $(CXX) -std=c++17 $(INCLUDE) -DCUDA_ON_CPU_EMULATED -O1 $(MARCH:%=-march=%) -ffp-contract=off \
               -fno-math-errno -fno-omit-frame-pointer -w

$(PTX_DIR)/machine.o: dev/test/ptx/machine.cpp dev/test/ptx/machine.h dev/device/cpu/cuda_runtime.h $(BUILD)/commands
	@echo "  compile $<"
	$(Q)$(COMPILE_CU) $(EXTRA) -c $< -o $@
$(PTX_CPP:.cpp=.o): %.o: %.cpp dev/test/ptx/machine.h dev/device/cpu/cuda_runtime.h
	@echo "  compile $<"
	$(Q)$(PTX_COMPILE) -c $< -o $@

define PTX_PROGRAM
$(PTX_DIR)/$(notdir $(1)): $(BUILD)/$(1).o $(BUILD)/check_cpu.o $(BUILD)/libzero.a $(BUILD)/libdev.a $(PTX_OBJECTS)
	@echo "  link    $$@"
	$$(Q)$$(LINK) $$< $(BUILD)/check_cpu.o $(PTX_OBJECTS) -o $$@ \
	    -Wl,--start-group $(BUILD)/libzero.a $(BUILD)/libdev.a -Wl,--end-group $$(LIBS)
endef
$(foreach p,$(PROGRAMS),$(eval $(call PTX_PROGRAM,$(p))))
