# Source this before mpirun (`. scripts/env.sh`, in sh, bash or zsh): it lets Open MPI start the ranks on a laptop or in
# a container, and divides the cores among them. A variable that is set already keeps its value. `make run` and the
# tests use it; a cluster whose administrators have set up MPI does not need it. All of it, OMP_NUM_THREADS too, stays
# set in the shell; in parentheses, `(. scripts/env.sh; mpirun ...)`, it does not.
#
# NP: ranks on this machine (default 8). Open MPI 4 reads OMPI_MCA_*, Open MPI 5 PRTE_MCA_* for the same settings.

# In a container one is usually root.
export OMPI_ALLOW_RUN_AS_ROOT="${OMPI_ALLOW_RUN_AS_ROOT-1}"
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="${OMPI_ALLOW_RUN_AS_ROOT_CONFIRM-1}"
export PRTE_ALLOW_RUN_AS_ROOT="${PRTE_ALLOW_RUN_AS_ROOT-1}"
export PRTE_ALLOW_RUN_AS_ROOT_CONFIRM="${PRTE_ALLOW_RUN_AS_ROOT_CONFIRM-1}"

# Allow more ranks than cores, and bind no rank to a core: its OpenMP threads would all share that core.
export OMPI_MCA_rmaps_base_oversubscribe="${OMPI_MCA_rmaps_base_oversubscribe-1}"
export OMPI_MCA_hwloc_base_binding_policy="${OMPI_MCA_hwloc_base_binding_policy-none}"
export PRTE_MCA_rmaps_default_mapping_policy="${PRTE_MCA_rmaps_default_mapping_policy-:oversubscribe}"
export PRTE_MCA_hwloc_default_binding_policy="${PRTE_MCA_hwloc_default_binding_policy-none}"

# Containers often forbid a process to read another's memory; Open MPI would try, and complain at every message. (Ranks
# on one host exchange large buffers through shared memory of our own anyway.) The second variable silences warnings
# about fast networks that are not there.
export OMPI_MCA_btl_vader_single_copy_mechanism="${OMPI_MCA_btl_vader_single_copy_mechanism-none}"
export OMPI_MCA_btl_base_warn_component_unused="${OMPI_MCA_btl_base_warn_component_unused-0}"

# One machine needs no remote shell; Open MPI 4 refuses to start when it finds none.
if ! command -v ssh > /dev/null 2>&1 && ! command -v rsh > /dev/null 2>&1; then
    export OMPI_MCA_plm_rsh_agent="${OMPI_MCA_plm_rsh_agent-}"
fi

# A rank that waits for a message yields its core. By default Open MPI spins if there is a core for each rank, although
# other processes may need it.
export OMPI_MCA_mpi_yield_when_idle="${OMPI_MCA_mpi_yield_when_idle-1}"

# OpenMP threads of a rank: its share of the cores.
if [ -z "${OMP_NUM_THREADS-}" ]; then
    OMP_NUM_THREADS=$(( $(nproc 2> /dev/null || echo 1) / ${NP:-8} ))
    [ "$OMP_NUM_THREADS" -ge 1 ] || OMP_NUM_THREADS=1
    export OMP_NUM_THREADS
fi
