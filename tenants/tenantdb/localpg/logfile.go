package localpg

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"
)

const (
	maxLogBytes = 8 << 20 // of one file; the former one is kept beside it
	tailBytes   = 2 << 10 // kept in memory for error messages
)

// logFile takes what the server prints. It never fails: a log that cannot be
// written must not stop the database, which blocks on a full pipe.
type logFile struct {
	mu   sync.Mutex
	path string
	f    *os.File
	size int64
	tail []byte
}

func openLog(path string) (*logFile, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the database's log: %w", err)
	}
	st, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("open the database's log: %w", err)
	}
	return &logFile{path: path, f: f, size: st.Size()}, nil
}

// Write appends and turns the file over when it has its full size.
func (l *logFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tail = append(l.tail, p...)
	if over := len(l.tail) - tailBytes; over > 0 {
		l.tail = append(l.tail[:0], l.tail[over:]...)
	}
	if l.size+int64(len(p)) > maxLogBytes {
		l.turn()
	}
	if l.f != nil {
		n, _ := l.f.Write(p)
		l.size += int64(n)
	}
	return len(p), nil
}

func (l *logFile) turn() {
	if l.f != nil {
		_ = l.f.Close()
	}
	_ = os.Rename(l.path, l.path+".1")
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		f = nil
	}
	l.f, l.size = f, 0
}

// Tail answers the last lines, for an error message.
func (l *logFile) Tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.tail
	if len(t) == tailBytes {
		if i := bytes.IndexByte(t, '\n'); i >= 0 {
			t = t[i+1:]
		}
	}
	return strings.TrimSpace(string(t))
}

func (l *logFile) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f != nil {
		_ = l.f.Close()
		l.f = nil
	}
}
