package load

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Disk is a loop device over a file that is gone when the device is closed.
type Disk struct {
	Name string // loop3

	file, dev *os.File
	blocks    int
	buffer    []byte // as O_DIRECT wants it
}

const block = 4096

// NewDisk makes one in a directory. It needs root. The caller calls Close.
func NewDisk(dir string, size int64) (d *Disk, err error) {
	d = &Disk{blocks: int(size / block)}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	if d.file, err = os.CreateTemp(dir, "disk"); err != nil {
		return d, err
	}
	if err := errors.Join(os.Remove(d.file.Name()), d.file.Truncate(size)); err != nil {
		return d, err
	}
	if d.buffer, err = unix.Mmap(-1, 0, block, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE); err != nil {
		return d, err
	}
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return d, err
	}
	defer control.Close()
	for range 20 { // another process may be faster to the free device
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return d, err
		}
		d.Name = fmt.Sprintf("loop%d", n)
		dev, err := os.OpenFile("/dev/"+d.Name, os.O_RDWR|unix.O_DIRECT, 0)
		if err != nil {
			return d, err
		}
		err = unix.IoctlLoopConfigure(int(dev.Fd()), &unix.LoopConfig{Fd: uint32(d.file.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}})
		if err == nil {
			d.dev = dev // the device is free again when this is closed
			return d, nil
		}
		dev.Close()
		if !errors.Is(err, unix.EBUSY) {
			return d, err
		}
	}
	return d, errors.New("no free loop device")
}

// Break cuts the file off below the device: every request fails from now on.
func (d *Disk) Break() error { return d.file.Truncate(0) }

// Read sends one request of a block past all caches.
func (d *Disk) Read(i int) error {
	_, err := unix.Pread(int(d.dev.Fd()), d.buffer, int64(i%d.blocks)*block)
	return err
}

// Reads reads block after block for a while; the result counts requests.
func (d *Disk) Reads(length time.Duration) (r Rate, err error) {
	i := 0
	<-OnThread(0, func() { r, err = Repeat(length, func() error { i++; return d.Read(i) }) })
	return r, err
}

// Close detaches the device.
func (d *Disk) Close() error {
	var errs []error
	if d.dev != nil {
		errs = append(errs, d.dev.Close())
	}
	if d.file != nil {
		errs = append(errs, d.file.Close())
	}
	if d.buffer != nil {
		errs = append(errs, unix.Munmap(d.buffer))
	}
	return errors.Join(errs...)
}
