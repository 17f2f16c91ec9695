package probe

import "github.com/telltale-dev/telltale/agent/bpfload"

// labKernel is shared by the tests as the modules of an agent share it: most
// of the time of a short test is parsing the kernel's types otherwise.
var labKernel = bpfload.NewKernel()
