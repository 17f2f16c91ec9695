package localpg

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// account is whom the server runs as. cred is nil for the user of this process.
type account struct {
	name string
	uid  int
	gid  int
	cred *syscall.Credential
}

// findAccount answers the present user, or for root the named one, because
// PostgreSQL refuses to run as root.
func findAccount(name string) (account, error) {
	if uid := os.Geteuid(); uid != 0 {
		return account{name: "uid " + strconv.Itoa(uid), uid: uid, gid: os.Getegid()}, nil
	}
	if name == "" {
		name = "postgres"
	}
	u, err := user.Lookup(name)
	if err != nil {
		return account{}, fmt.Errorf("PostgreSQL does not run as root, and there is no user %s to run it as (make one with: useradd --system %s): %w", name, name, err)
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil || uid == 0 {
		return account{}, fmt.Errorf("PostgreSQL does not run as root: user %s has uid %s", name, u.Uid)
	}
	gid, err := strconv.Atoi(u.Gid)
	if err != nil {
		return account{}, fmt.Errorf("user %s has group %q", name, u.Gid)
	}
	return account{name: name, uid: uid, gid: gid, cred: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
}

// makeDirs makes dir and its missing parents, open for passage whatever the
// umask is: data/ and run/ inside are closed by their own modes.
func makeDirs(dir string) error {
	err := os.Mkdir(dir, 0o755)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeDirs(filepath.Dir(dir)); err != nil {
			return err
		}
		err = os.Mkdir(dir, 0o755)
	}
	if err == nil {
		return os.Chmod(dir, 0o755)
	}
	if st, statErr := os.Stat(dir); statErr == nil && st.IsDir() {
		return nil // left as it is
	}
	return err
}

// own makes dir with mode 0700 for the account, or checks that an existing one
// is a real directory of the account's and closes it to others.
func (a account) own(dir string) error {
	err := os.Mkdir(dir, 0o700)
	if err == nil {
		return os.Chown(dir, a.uid, a.gid)
	}
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	st, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !st.IsDir() || !ok || int(sys.Uid) != a.uid {
		return fmt.Errorf("%s is not a directory that belongs to %s: run as before, or give it back with chown -R %d:%d %s", dir, a.name, a.uid, a.gid, dir)
	}
	return os.Chmod(dir, 0o700)
}

// reaches checks that the account can enter dir, by entering each directory on
// the way as that account: the kernel's word covers modes, groups and ACLs.
func (a account) reaches(dir string) error {
	if a.cred == nil {
		return nil // it is us, and we made it
	}
	way := "/"
	for _, part := range append([]string{""}, strings.Split(strings.Trim(dir, "/"), "/")...) {
		way = filepath.Join(way, part)
		cmd := exec.Command("/bin/true")
		cmd.Dir = way
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: a.cred}
		err := cmd.Run()
		if err == nil {
			continue
		}
		if !errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("enter %s as %s: %w", way, a.name, err)
		}
		return fmt.Errorf("the database runs as user %s, who may not enter %s (on the way to %s): run chmod o+x %s or setfacl -m u:%s:x %s, or choose a data directory elsewhere, for example under /var/lib",
			a.name, way, dir, way, a.name, way)
	}
	return nil
}
