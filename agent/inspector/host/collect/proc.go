package collect

import (
	"bytes"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// maxFile bounds what is read of one file. /proc/stat of a machine with 4096
// CPUs and mountinfo of 10,000 mounts stay below it.
const maxFile = 4 << 20

func (c *Collector) read(parts ...string) (string, error) {
	return readFile(filepath.Join(append([]string{c.cfg.Proc}, parts...)...))
}

func readFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(io.LimitReader(f, maxFile+1)); err != nil {
		return "", err
	}
	if b.Len() > maxFile {
		return "", fmt.Errorf("%s has more than %d bytes", path, maxFile)
	}
	return b.String(), nil
}

// pairs yields the key and first number of lines such as "MemTotal: 1 kB"
// or "pswpin 12". Lines without a number are passed over.
func pairs(text string) iter.Seq2[string, uint64] {
	return func(yield func(string, uint64) bool) {
		for line := range strings.Lines(text) {
			f := strings.Fields(line)
			if len(f) < 2 {
				continue
			}
			n, err := strconv.ParseUint(f[1], 10, 64)
			if err != nil {
				continue
			}
			if !yield(strings.TrimSuffix(f[0], ":"), n) {
				return
			}
		}
	}
}
